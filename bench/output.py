"""What becomes of a result: a table on the terminal, a JSON file, a picture."""

import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Result

RESULTS = Path(__file__).parent / "results"
ACROSS = 6  # rows' pictures side by side


def show(result: Result, console: Console) -> None:
    """Print a result."""
    about = result.machine
    table = Table(title=f"{result.bench}: {about.get('cpu')}, {about.get('cores')} cores")
    for heading in ("row", "median", "low", "high", "unit", "target", "met"):
        table.add_column(heading, justify="right" if heading in ("median", "low", "high") else "left")
    for row in result.rows:
        figures = (f"{value:.4g}" for value in (row.value, row.low, row.high))
        table.add_row(row.name, *figures, row.unit, row.target, verdict(row.met))
    console.print(table)
    for row in result.rows:
        if row.note:
            console.print(f"{row.name}: {row.note}", highlight=False)


def verdict(met: bool | None) -> str:
    """Return a word for whether a target was met."""
    return {True: "yes", False: "no", None: ""}[met]


def write_json(result: Result, path: Path) -> None:
    """Write a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result.as_json(), indent=1, ensure_ascii=False) + "\n")


def draw(result: Result, path: Path) -> bool:
    """Draw each row's median and spread against its target; False without matplotlib (extra `dev`)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    across = max(1, min(ACROSS, len(result.rows)))
    down = max(1, math.ceil(len(result.rows) / across))
    figure = Figure(figsize=(3.2 * across, 3.2 * down), layout="constrained")
    FigureCanvasAgg(figure)
    for place, row in enumerate(result.rows, start=1):
        axes = figure.add_subplot(down, across, place)
        below, above = row.value - row.low, row.high - row.value
        axes.errorbar([0], [row.value], yerr=[[below], [above]], fmt="o", capsize=6, color="#204a87")
        words = row.target.split()
        if row.met is not None:
            axes.axhline(float(words[1]), color="#a40000", linestyle="--", linewidth=1)
        axes.set_title(f"{row.name}\ntarget {row.target}" if row.target else row.name, fontsize=9)
        axes.set_ylabel(row.unit)
        axes.set_xticks([])
        if row.low >= 0:
            axes.set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True

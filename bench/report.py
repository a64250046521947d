"""`headrace bench report`: writes the table of docs/benchmarks.md from the results beside this file."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Result, read_result
from bench.output import RESULTS, verdict

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: made by `headrace bench report` -->", "<!-- end of results -->"


def read_results(folder: Path) -> list[Result]:
    """Read all results of a folder, by name. Raises: ValueError naming a file that is none."""
    results: list[Result] = []
    for file in sorted(folder.glob("*.json")):
        try:
            results.append(read_result(json.loads(file.read_text())))
        except ValueError as error:
            raise ValueError(f"{file.name}: {error}") from error
    return results


def table(results: Sequence[Result]) -> str:
    """Build the Markdown table."""
    lines = [
        "| Benchmark | Row | Median | Low to high | Unit | Target | Met | Note |",
        "|---|---|---:|---:|---|---|---|---|",
    ]
    for result in results:
        for row in result.rows:
            cells = (
                result.bench,
                row.name,
                f"{row.value:.4g}",
                f"{row.low:.4g} to {row.high:.4g}",
                row.unit,
                row.target,
                verdict(row.met),
                row.note,
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for result in results:
        about = result.machine
        packages = ", ".join(f"{name} {version}" for name, version in about.get("packages", {}).items())
        lines += ["", f"{result.bench}: {about.get('cpu')}, {about.get('cores')} cores, "]
        lines[-1] += (
            f"{about.get('memory_gib')} GiB; {packages}; commit {about.get('commit')}, {about.get('date')}."
        )
    return "\n".join(lines)


def replaced(page: str, made: str) -> str:
    """Return the page with what stands between its markers replaced. Raises: ValueError without markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def report(folder: Path = RESULTS, page: Path = PAGE) -> int:
    """Regenerate the page's table; return the number of results in it."""
    results = read_results(folder)
    page.write_text(replaced(page.read_text(), table(results)))
    return len(results)

"""What the demo shows: colours and a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from cli.answers import Task
from cli.stack.folder import RunInfo

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the summary."""

    name: str
    tasks: Sequence[Task]
    took_s: float


class DemoView:
    """Prints one demo."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[_Row] = []
        self._parts = 0

    def begin(self, run: RunInfo) -> None:
        """Say where everything is."""
        self._line("")
        self._line(f"API     {run.api_url}/v1, model {run.model}, key in {run.api_key_file}")
        self._line(f"Flower  {run.flower_url} as {run.flower_user}, password in {run.flower_password_file}")

    def part(self, title: str, how: str) -> None:
        """Head one part of the demo."""
        self._parts += 1
        self._line("")
        self._console.print(
            Text.assemble((f"{self._parts}. {title}", "bold"), (f"  {how}", "dim")), soft_wrap=True
        )

    def question(self, text: str) -> None:
        """Show a prompt."""
        self._console.print(Text(f"  > {text}", "cyan"), soft_wrap=True)

    def begin_answer(self) -> None:
        """Begin the line that the pieces make."""
        self._console.print(_INDENT, end="")

    def piece(self, text: str) -> None:
        """Show a piece of a streamed answer at once."""
        self._console.print(Text(_visible(text).replace("\n", "\n" + _INDENT)), end="", soft_wrap=True)

    def end_of_answer(self) -> None:
        """End that line."""
        self._line("")

    def answer(self, task: Task) -> None:
        """Show a whole answer, or why there is none."""
        if task.error:
            self._console.print(Text(f"{_INDENT}{task.status}: {task.error.message}", "red"), soft_wrap=True)
        for line in _visible(task.text).strip().splitlines():
            self._line(_INDENT + line)

    def accepted(self, task: Task) -> None:
        """Show the id that submitting gave."""
        self._line(f"{_INDENT}{task.id} in lane {task.lane}")

    def state(self, task: Task, at_s: float) -> None:
        """Show that a look found another state than the look before."""
        self._line(f"{_INDENT}{at_s:6.2f} s  {task.status}")

    def facts(self, task: Task) -> None:
        """Show what an answer took and cost."""
        self._console.print(Text(_INDENT + facts(task), "dim"), soft_wrap=True)

    @contextmanager
    def batch(self, total: int) -> Iterator[Callable[[], None]]:
        """Show progress below what is printed inside; yields what to call after each task."""
        columns = ("batch", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Bar(*columns, console=self._console, disable=not self._console.is_terminal) as bar:
            task = bar.add_task("batch", total=total)
            yield lambda: bar.advance(task)

    def count(self, name: str, tasks: Sequence[Task], took_s: float | None = None) -> None:
        """Note a part for the summary; without `took_s` it took as long as its one task."""
        if took_s is None:
            took_s = (tasks[0].timings.total_ms or 0) / 1000
        self._rows.append(_Row(name, tasks, took_s))

    def summary(self, took_s: float) -> None:
        """Show all parts in one table."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("", no_wrap=True)
        for heading in ("tasks", "prompt", "output", "queued", "first", "took", "tokens/s", "USD"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*_cells(row.name, row.tasks, row.took_s))
        everything = [task for row in self._rows for task in row.tasks]
        table.add_section()
        table.add_row(*_cells("together", everything, took_s), style="bold")
        self._line("")
        self._console.print(table)
        self._console.print(
            Text("prompt, output: tokens. queued, first (token): medians. The prices are made up.", "dim"),
            soft_wrap=True,
        )

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def facts(task: Task) -> str:
    """Say in a line what a task took and cost."""
    parts = []
    if task.usage:
        cached = task.usage.prompt_tokens_details.cached_tokens
        of_them = f" ({cached} cached)" if cached else ""
        parts.append(f"{task.usage.prompt_tokens}{of_them} + {task.usage.completion_tokens} tokens")
    times = task.timings
    for name, value in (
        ("queued", times.queued_ms),
        ("first token", times.first_token_ms),
        ("total", times.total_ms),
    ):
        if value is not None:
            parts.append(f"{name} {value} ms")
    if task.cost_usd_micros is not None:
        parts.append(f"USD {task.cost_usd_micros / 1e6:.6f}")
    return ", ".join(parts)


def _cells(name: str, tasks: Sequence[Task], took_s: float) -> tuple[str, ...]:
    output = sum(task.usage.completion_tokens for task in tasks if task.usage)
    return (
        name,
        str(len(tasks)),
        str(sum(task.usage.prompt_tokens for task in tasks if task.usage)),
        str(output),
        _median_ms([task.timings.queued_ms for task in tasks]),
        _median_ms([task.timings.first_token_ms for task in tasks]),
        f"{took_s:.2f} s",
        f"{output / took_s:.0f}" if took_s > 0 else "",
        f"{sum(task.cost_usd_micros or 0 for task in tasks) / 1e6:.6f}",
    )


def _median_ms(values: Sequence[int | None]) -> str:
    known = sorted(value for value in values if value is not None)
    return f"{known[len(known) // 2]} ms" if known else "-"


def _visible(text: str) -> str:
    """Text without what could steer the terminal: a model may say anything."""
    return "".join(character for character in text if character.isprintable() or character == "\n")

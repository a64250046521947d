"""How a running batch looks: a bar with rate and time left on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.batch_client import BatchAnswer

_LINE_EVERY_S = 10.0


class BatchView:
    """Shows the sum of several batches."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._began = time.monotonic()
        self._began_done: int | None = None  # what was done before we looked is no rate of ours
        self._line_at = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("batch", total=total, rate="")

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def show(self, batches: Sequence[BatchAnswer]) -> None:
        """Show them as they are now."""
        done = sum(batch.request_counts.completed + batch.request_counts.failed for batch in batches)
        tokens = sum(batch.usage.output_tokens for batch in batches)
        open_ = [batch.status for batch in batches if not batch.final]
        status = open_[0] if open_ else "done"
        rate = self._rate(done)
        self._progress.update(self._task, description=status, completed=done, rate=f"{rate}, {tokens} tokens")
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._line_at > _LINE_EVERY_S or not open_):
            self._line_at = now
            self._console.print(f"{status}: {done}/{self._total}, {rate}, {tokens} tokens", highlight=False)

    def _rate(self, done: int) -> str:
        if self._began_done is None:
            self._began, self._began_done = time.monotonic(), done
        spent_s = time.monotonic() - self._began
        made = done - self._began_done
        if made <= 0 or spent_s <= 0:
            return "0/s"
        per_s = made / spent_s
        return f"{per_s:.1f}/s, {_clock((self._total - done) / per_s)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

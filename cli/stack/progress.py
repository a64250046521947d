"""What a starting stack shows: a line when a step is done, and on a terminal what is being waited for."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class Progress:
    """Collects notes and shows nothing: for tests and other commands."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.took_s: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, what: str) -> Iterator[None]:
        """Around one step; an exception means it is not done."""
        started = time.monotonic()
        self._begin(name, what)
        try:
            yield
        except BaseException:
            self._end(name, what, None)
            raise
        self.took_s[name] = time.monotonic() - started
        self._end(name, what, self.took_s[name])

    def note(self, text: str) -> None:
        """Something worth knowing happened."""
        self.notes.append(text)

    def close(self) -> None:
        """No more steps."""

    def _begin(self, name: str, what: str) -> None:
        pass

    def _end(self, name: str, what: str, took_s: float | None) -> None:
        pass


class PlainProgress(Progress):
    """A line per event, for logs and pipes."""

    def note(self, text: str) -> None:
        super().note(text)
        print(f"headrace: {text}", flush=True)

    def _begin(self, name: str, what: str) -> None:
        print(f"headrace: {name}: {what}", flush=True)

    def _end(self, name: str, what: str, took_s: float | None) -> None:
        if took_s is not None:
            print(f"headrace: {name}: done ({took_s:.1f} s)", flush=True)


class TerminalProgress(Progress):
    """A spinner that names the steps under way, and a line per step done."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._current: dict[str, str] = {}
        self._status = console.status("starting")
        self._status.start()

    def note(self, text: str) -> None:
        super().note(text)
        self._console.print(f"[yellow]![/] {escape(text)}", soft_wrap=True)

    def close(self) -> None:
        self._status.stop()

    def _begin(self, name: str, what: str) -> None:
        self._current[name] = what
        self._show()

    def _end(self, name: str, what: str, took_s: float | None) -> None:
        self._current.pop(name, None)
        if took_s is not None:
            self._console.print(f"[green]✓[/] {name:<9} [dim]{took_s:.1f} s[/]", highlight=False)
        self._show()

    def _show(self) -> None:
        self._status.update("; ".join(f"{name}: {what}" for name, what in self._current.items()) or "…")

"""How an attempt's text gets to its readers: the first and the last at once, the rest at a bounded rate."""

import asyncio
import time
from typing import TYPE_CHECKING

from core.lanes import Priority
from storage.records import Claim
from workers.progress import Progress
from workers.record import Record

if TYPE_CHECKING:
    from workers.session import Session

_INTERVAL_S = 0.05  # between two deltas of a task, while more than _FEW run here
_FEW = 32
_BATCH_EVERY_S = 0.5  # all that batch work produced goes out at once, in one round trip: its reader is a file


class Delivery:
    """One attempt's. `progress` is replaced once it is known what earlier attempts sent."""

    def __init__(self, session: "Session", claim: Claim, record: Record, progress: Progress) -> None:
        self._session, self._claim, self._record = session, claim, record
        self.progress = progress
        self.ttft_ms: int | None = None  # from acceptance; None where an earlier attempt sent the first token
        self._continues = False
        self._began = time.monotonic()
        self._first_sent = False
        self._sent_at = 0.0  # monotonic, of the newest delta
        self._held_until: asyncio.TimerHandle | None = None

    def opened(self, progress: Progress) -> None:
        """Go on from what readers have."""
        self.progress, self._continues = progress, progress.streamed

    def send(self, finished: bool) -> None:
        """Send what the step produced, now or soon."""
        due_s = 0.0 if not self._first_sent or finished else self._due_s()
        if due_s <= 0:
            self.flush()
        elif self._held_until is None:
            self._held_until = asyncio.get_running_loop().call_later(due_s, self.flush)

    def _due_s(self) -> float:
        now = time.monotonic()
        if self._claim.lane.priority is Priority.BATCH:
            return _BATCH_EVERY_S - now % _BATCH_EVERY_S
        return self._sent_at + _INTERVAL_S - now if len(self._session.running) > _FEW else 0.0

    def flush(self) -> None:
        """Send all that was produced."""
        self.stop_timer()
        entry = self.progress.take()
        if entry is None:
            return
        self._sent_at = time.monotonic()
        if not self._first_sent and not self._continues:
            in_worker_s = self._sent_at - self._began
            self.ttft_ms = round((self._claim.waited_s + in_worker_s) * 1000)
            self._record.first_token(self.ttft_ms)
            if self._claim.lane.priority is Priority.INTERACTIVE:
                self._session.first_tokens.add(self._sent_at, in_worker_s)
        self._first_sent = True
        self._session.chunks.append(entry)

    def stop_timer(self) -> None:
        """Nothing is sent by itself any more."""
        if self._held_until is not None:
            self._held_until.cancel()
            self._held_until = None

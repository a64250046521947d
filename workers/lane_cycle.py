"""Which queues a consumer asks the broker for next: those whose work may start now, in the order of service.

It is what kombu calls a queue cycle (`update`, `consume`, `rotate`), asked before every BRPOP. A message taken
from the broker is out of every other worker's reach, so nothing is taken that would wait here.
"""

from collections.abc import Callable, Iterable

from core.lanes import Lane, LengthClass, Priority

PATIENCE = 8  # starts that may pass a waiting lane over before it is asked first, once


class LaneCycle:
    """The queues of one consumer. `may_start(queue)` says whether a message of it would start at once."""

    def __init__(self, may_start: Callable[[str], bool]) -> None:
        self._may_start = may_start
        self._queues: list[str] = []
        self._asked: list[str] = []
        self._passed: dict[str, int] = {}

    def update(self, queues: Iterable[str]) -> None:
        """Take what the consumer subscribes to."""
        self._queues = sorted(queues, key=_rank)

    def consume(self, n: int) -> list[str]:
        """The queues to ask for a message, most wanted first; none where nothing may start."""
        free = [queue for queue in self._queues if self._may_start(queue)]
        due = [queue for queue in free if self._passed.get(queue, 0) >= PATIENCE]
        due.sort(key=lambda queue: -self._passed[queue])
        self._asked = [*due, *(queue for queue in free if queue not in due)]
        return self._asked

    def rotate(self, last_used: str) -> str:
        """Note which queue gave the message: those asked after it were passed over, were there any."""
        if last_used in self._asked:
            for queue in self._asked[self._asked.index(last_used) + 1 :]:
                self._passed[queue] = self._passed.get(queue, 0) + 1
        self._passed[last_used] = 0
        return last_used


def _rank(queue: str) -> tuple[int, int, str]:
    """Priority first, then the shorter, of batch work the longer (`core.ranking`); no lane's queue comes last."""
    try:
        lane = Lane.parse(queue)
    except ValueError:
        return len(Priority), 0, queue
    length = list(LengthClass).index(lane.length_class)
    return lane.priority.rank, -length if lane.priority is Priority.BATCH else length, queue


def is_interactive(queue: str) -> bool:
    """Say whether a person waits for what this queue carries."""
    return _rank(queue)[0] == 0

"""Which messages has the broker lost? Told from counts alone, so that a long queue need not be read."""

from collections.abc import Mapping

from core.lanes import Lane


def missing_messages(
    expected: Mapping[Lane, int], waiting: Mapping[str, int], *, held: int, running: int
) -> dict[Lane, int]:
    """Say how many messages each lane lacks.

    `expected` counts the tasks that wait and were published, `waiting` the messages in queues. A message that
    a worker holds but has not claimed yet is in neither: there are `held` - `running` of them, of any lane,
    and each is taken to be one that seems missing.
    """
    lacking = {lane: count - waiting.get(lane.queue, 0) for lane, count in expected.items()}
    lacking = {lane: count for lane, count in lacking.items() if count > 0}
    unclaimed = max(0, held - running)
    if sum(lacking.values()) <= unclaimed:
        return {}
    return lacking

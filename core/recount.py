"""Which messages has the broker lost? Told from counts alone, so that a long queue need not be read."""

from collections.abc import Mapping

from core.lanes import Lane


def missing_messages(
    expected: Mapping[Lane, int], waiting: Mapping[str, int], *, held: int, running: int
) -> dict[Lane, int]:
    """Say how many messages each lane lacks.

    `expected` counts the tasks that wait and were published, `waiting` the messages in queues. A message that
    a worker holds but has not claimed yet is in neither: there are `held` - `running` of them, of any lane,
    and each is taken to be one that seems missing. A killed worker's messages are counted as held too, until
    their visibility runs out: so a lane that waits although its queue is empty lacks them in any case. If they
    are held by a worker after all, a duplicate ends in its claim, and the queue is empty no more.
    """
    lacking = {lane: count - waiting.get(lane.queue, 0) for lane, count in expected.items()}
    lacking = {lane: count for lane, count in lacking.items() if count > 0}
    unclaimed = max(0, held - running)
    if sum(lacking.values()) <= unclaimed:
        return {lane: count for lane, count in lacking.items() if not waiting.get(lane.queue)}
    return lacking

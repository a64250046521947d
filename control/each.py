"""One batch after another: one that fails delays none of the others."""

from collections.abc import Awaitable, Callable, Iterable

import structlog

from storage.batch_items import OvertakenError
from storage.batches import Batch

log = structlog.get_logger()


async def for_each(batches: Iterable[Batch], step: Callable[[Batch], Awaitable[int]]) -> int:
    """Take a step with each batch and sum what the steps return; the next tick tries again what failed."""
    total = 0
    for batch in batches:
        try:
            total += await step(batch)
        except OvertakenError:
            log.info("batch_overtaken", batch_id=batch.id)  # cancelled, expired, or another leads by now
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this batch's
            log.error("batch_failed", batch_id=batch.id, error=f"{type(error).__name__}: {error}")
    return total

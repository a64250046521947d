"""Holding on to what runs here: lease renewal, and hearing of cancels.

All leases are renewed in one statement three times within a lease. Its answer is also the truth about
cancels (a state says so) and about lost attempts (they are missing); the cancel channel is only quicker.
"""

import asyncio
import time
from contextlib import suppress

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core.states import TaskState
from services import attempt as services
from storage.errors import STORE_ERRORS
from storage.records import Held
from workers.session import Session

log = structlog.get_logger()


async def renew_leases(session: Session) -> None:
    """Renew until cancelled."""
    every_s = session.settings.lease_s / 3
    while True:
        began = time.monotonic()
        running = [
            Held(
                task_id,
                attempt.claim.attempt,
                cleared=attempt.productive,
                used=attempt.used,
                preemptions=attempt.preemptions,
            )
            for task_id, attempt in session.running.items()
        ]
        if running:
            try:
                held = await services.renew(session.database, running, session.settings.lease_s)
            except STORE_ERRORS as error:
                log.warning("leases_not_renewed", running=len(running), error=type(error).__name__)
            else:
                _apply(session, running, held)
        await asyncio.sleep(max(0.05, every_s - (time.monotonic() - began)))


def _apply(session: Session, asked: list[Held], held: dict[str, TaskState]) -> None:
    for one in asked:
        attempt = session.running.get(one.task_id)
        if attempt is None or attempt.claim.attempt != one.attempt or attempt.settling:
            continue  # ended while the statement ran
        if one.task_id not in held:
            attempt.lose("lease")
        elif held[one.task_id] is TaskState.CANCELLING:
            attempt.cancel()


async def hear_cancels(session: Session, redis: Redis) -> None:
    """Pass cancels on from the channel until cancelled."""
    while True:
        pubsub = redis.pubsub(ignore_subscribe_messages=True)
        try:
            await pubsub.subscribe(session.streams.cancel_channel)
            while True:
                message = await pubsub.get_message(timeout=60)
                if message is not None:
                    session.cancel(message["data"].decode())
        except (RedisError, OSError) as error:
            log.warning("cancels_not_heard", error=str(error))
            await asyncio.sleep(0.5)
        finally:
            with suppress(RedisError, OSError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

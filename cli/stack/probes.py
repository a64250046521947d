"""Readiness probes for supervised children: each says whether the child serves now."""

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable

from cli.stack.supervisor import Running

Probe = Callable[[Running], Awaitable[bool]]

# One plain line, or the same as an event of a JSON log.
_READY = re.compile(rb'headrace: ready|"event": ?"(?:headrace: )?ready"')


def blocking(is_ready: Callable[[], bool]) -> Probe:
    """A probe of a function that blocks."""

    async def probe(running: Running) -> bool:
        return await asyncio.to_thread(is_ready)

    return probe


def http(url: str, *statuses: int) -> Probe:
    """Ready when a GET is answered with one of these statuses."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return response.status in statuses
        except urllib.error.HTTPError as error:
            return error.code in statuses
        except OSError:
            return False

    return blocking(answers)


async def said_ready(running: Running) -> bool:
    """Ready when the child's log has the line `headrace: ready` since this process began."""
    with running.child.program.log.open("rb") as log:
        log.seek(running.log_start)
        return _READY.search(log.read()) is not None

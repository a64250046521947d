"""Readiness probes for supervised children: each says whether the child serves now."""

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import psutil

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
    """Ready when a GET is answered with one of these statuses, and by this very child.

    Of two stacks that start at once both may have found the same port free: the one that came second must not take
    the other's answers for its own.
    """
    port = urlsplit(url).port
    assert port is not None

    async def probe(running: Running) -> bool:
        return await asyncio.to_thread(lambda: answers() and listens(running.process.pid, port))

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return response.status in statuses
        except urllib.error.HTTPError as error:
            return error.code in statuses
        except OSError:
            return False

    return probe


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one that it started, listens on a port."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        found = [each for one in family for each in one.net_connections("inet")]
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


async def said_ready(running: Running) -> bool:
    """Ready when the child's log has the line `headrace: ready` since this process began."""
    with running.child.program.log.open("rb") as log:
        log.seek(running.log_start)
        return _READY.search(log.read()) is not None

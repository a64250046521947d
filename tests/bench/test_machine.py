"""Processes that stand still while others are measured."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bench.machine import standing_still
from tests.support.waiting import eventually


@pytest.fixture
def processes() -> Iterator[list[psutil.Process]]:
    """One that does nothing, and one that has ended."""
    started = [subprocess.Popen([sys.executable, "-c", code]) for code in ("import time; time.sleep(60)", "")]
    found = [psutil.Process(one.pid) for one in started]
    started[1].wait()
    yield found
    for one in started:
        one.kill()
        one.wait()


async def test_they_go_on_when_the_measurement_fails_and_one_that_ended_stops_nobody(
    processes: list[psutil.Process],
) -> None:
    still, _ = processes
    with pytest.raises(ValueError, match="measured"), standing_still(processes):
        await eventually(lambda: still.status() == psutil.STATUS_STOPPED, what="it stands still")
        raise ValueError("nothing was measured")
    await eventually(lambda: still.status() != psutil.STATUS_STOPPED, what="it goes on")

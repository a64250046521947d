"""Runs `owner.py` and kills it."""

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

OWNER = Path(__file__).with_name("owner.py")


@dataclass(frozen=True, slots=True)
class Owned:
    """What a killed owner had said about its children."""

    pids: dict[str, int]
    url: str = ""


async def killed_owner(kind: str, folder: Path) -> Owned:
    """Start an owner, wait until its children are ready, kill it with SIGKILL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(OWNER), kind, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), timeout=60)
        return Owned(**json.loads(line))
    finally:
        process.kill()
        await process.wait()

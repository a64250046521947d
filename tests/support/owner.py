"""A process that owns children, for tests that kill it: python owner.py KIND FOLDER.

It prints one line, its children's process ids as JSON, once they are ready; then it waits to be killed.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cli.stack.postgres import PostgresServer  # noqa: E402
from cli.stack.supervisor import Child, Supervisor  # noqa: E402
from cli.stack.valkey import ValkeyServer  # noqa: E402
from tests.support.children import idle, said  # noqa: E402

PASSWORD = "owner's password"


def main(kind: str, folder: Path) -> None:
    if kind == "supervisor":
        asyncio.run(supervise(folder))
        return
    server = (
        PostgresServer(folder, None, PASSWORD) if kind == "postgres" else ValkeyServer(folder, None, PASSWORD)
    )
    server.start()
    print(json.dumps({"pids": {kind: server.pid}, "url": server.url}), flush=True)
    signal.pause()


async def supervise(folder: Path) -> None:
    supervisor = Supervisor()
    for name in ("first", "second"):
        await supervisor.start(Child(idle(name, folder), said("ready")))
    print(json.dumps({"pids": supervisor.pids}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""Plain Celery: the threads pool, a connection a thread. `python celery_threads.py work | produce COUNT`."""

import os
import sys
import threading
import uuid
from collections.abc import Sequence

import psycopg
from celery import Celery
from statements import CLAIM, PRODUCE, SETTLE

app = Celery("peer", broker=os.environ["PEER_REDIS_URL"])
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
_local = threading.local()


def run(statements: Sequence[str], job: str) -> None:
    """Run the statements of one transaction."""
    connection = getattr(_local, "connection", None)
    if connection is None:
        connection = _local.connection = psycopg.connect(os.environ["PEER_DATABASE_URL"])
    with connection.transaction():
        for statement in statements:
            connection.execute(statement.replace("$1", "%s"), (job,))


@app.task(name="peer.job")  # type: ignore[untyped-decorator]
def work(job: str) -> None:
    """Do one job."""
    run(CLAIM, job)
    run(SETTLE, job)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        app.worker_main(
            ["worker", "-P", "threads", "-c", "32", "--without-mingle", "--without-gossip", "-l", "WARNING"]
        )
    else:
        for _ in range(int(sys.argv[2])):
            name = uuid.uuid4().hex
            run(PRODUCE, name)
            work.delay(name)

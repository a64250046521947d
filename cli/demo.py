"""`headrace demo`: the whole platform at work in one command, and nothing left behind.

It starts the same stack as `headrace up`, or uses the one that runs on the folder, and does over HTTP what
any caller would: stream a chat answer, poll a task, run a batch. Its answers are checked where they can be.
"""

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from rich.console import Console

from cli.answers import Task
from cli.batch_client import BatchAnswer, BatchClient
from cli.client import CHAT_URL, Client, ClientError, chat_body
from cli.demo_view import DemoView
from cli.stack.folder import DataFolder, RunInfo
from cli.stack.local import LocalStack
from cli.stack.process import StackError
from cli.stack.progress import PlainProgress, Progress, TerminalProgress
from core.states import TaskState

QUESTION, ANSWER = "What is the capital of France?", "Paris"
TASK = "Write one sentence about the sea."
BATCH = (  # what a model of 135 million parameters knows
    *(f"What is the capital of {country}?" for country in ("Japan", "Germany", "Austria", "Greece", "China")),
    *(f"What is the capital of {country}?" for country in ("Egypt", "Kenya", "Cuba", "Russia", "Peru")),
    "Which animal says meow?",
    "What is the capital of England?",
)
_DEADLINE_S = 300.0  # the demo ends even where the engine is stuck
_POLL_S = 0.05  # far quicker than the API advises, so that each state is seen
_INTERRUPTED = 130  # as a shell reports a command ended by Ctrl-C


class DemoError(Exception):
    """Something did not work as it should; the message says what."""


def demo(data: Path) -> int:
    """Run the demo and return the exit code: 0 when all worked, 1 when not, 130 when interrupted."""
    console = Console()
    progress = TerminalProgress(console) if console.is_terminal else PlainProgress()
    stack = LocalStack(data, progress=progress)
    try:
        asyncio.run(_until_signalled(stack, console, progress))
    except asyncio.CancelledError:
        print("headrace demo: interrupted; everything it started has ended", file=sys.stderr)
        return _INTERRUPTED
    except (StackError, ClientError, DemoError) as error:
        progress.close()
        print(f"headrace demo: {error}\nLogs: {stack.folder.logs}", file=sys.stderr)
        return 1
    finally:
        progress.close()
    return 0


async def _until_signalled(stack: LocalStack, console: Console, progress: Progress) -> None:
    """Raises: asyncio.CancelledError after a signal, once everything has ended."""
    running = asyncio.create_task(_demo(stack, console, progress))
    asked = False

    def ask() -> None:
        nonlocal asked
        if asked:
            stack.supervisor.hurry()
        else:
            running.cancel()
        asked = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, ask)
    await asyncio.wait({running})
    running.result()


async def _demo(stack: LocalStack, console: Console, progress: Progress) -> None:
    async with _running(stack, progress) as run:
        progress.close()
        view = DemoView(console)
        view.begin(run)
        async with BatchClient(run.api_url, run.api_key) as client:
            began = time.monotonic()
            tasks = [
                await _stream_one(client, run, view),
                await _poll_one(client, run, view),
                *await _run_batch(client, run, view),
            ]
        view.summary(time.monotonic() - began)
        unfinished = [task for task in tasks if task.status is not TaskState.COMPLETED]
        if unfinished:
            first = unfinished[0]
            why = f": {first.error.message}" if first.error else ""
            raise DemoError(f"{len(unfinished)} of {len(tasks)} tasks did not complete ({first.id}{why})")


@asynccontextmanager
async def _running(stack: LocalStack, progress: Progress) -> AsyncIterator[RunInfo]:
    """The stack that runs on the folder, or one that ends with the demo. Raises: StackError."""
    if stack.folder.running() is not None:
        with progress.step("stack", "one runs on this folder; waiting until it serves"):
            run = await _ready(stack.folder)
        yield run
        return
    await stack.start()
    try:
        yield stack.run
    finally:
        print("headrace: stopping (Ctrl-C again: at once)", flush=True)
        await stack.stop()
    print("headrace: stopped; `./headrace up` keeps it running", flush=True)


async def _ready(folder: DataFolder) -> RunInfo:
    while True:
        run = folder.running()
        if run is None:
            raise StackError(f"the stack on {folder.path} ended; try again")
        if run.ready:
            return run
        await asyncio.sleep(0.2)


async def _stream_one(client: Client, run: RunInfo, view: DemoView) -> Task:
    view.part("One chat answer, streamed", "POST /v1/chat/completions")
    view.question(QUESTION)
    view.begin_answer()
    text = ""
    async with client.chat(chat_body(run.model, QUESTION)) as stream:
        async for piece in stream.pieces:
            text += piece
            view.piece(piece)
    view.end_of_answer()
    task = await client.task(stream.task_id)
    view.facts(task)
    view.count("chat", [task])
    if ANSWER not in text:
        made_up = " (its engine is the deterministic one, which makes up its text)"
        raise DemoError(
            f"asked {QUESTION!r}, {run.model} answered {text.strip()!r}, which doesn't say {ANSWER}"
            + (made_up if run.engine == "deterministic" else "")
        )
    return task


async def _poll_one(client: Client, run: RunInfo, view: DemoView) -> Task:
    view.part("One task, polled", "POST /v1/tasks, then GET /v1/tasks/{id}")
    view.question(TASK)
    began = time.monotonic()
    task = await client.submit(chat_body(run.model, TASK), deadline_s=_DEADLINE_S)
    view.accepted(task)
    seen = None

    def look(task: Task) -> None:
        nonlocal seen
        if task.status != seen:
            view.state(task, time.monotonic() - began)
        seen = task.status

    async with _ended_with(client, task):
        task = await client.poll(task.id, every_s=_POLL_S, on_look=look)
    view.answer(task)
    view.facts(task)
    view.count("task", [task])
    return task


async def _run_batch(client: BatchClient, run: RunInfo, view: DemoView) -> list[Task]:
    view.part(f"A batch of {len(BATCH)} requests", "POST /v1/files, POST /v1/batches")
    began = time.monotonic()
    with TemporaryDirectory(prefix="headrace-demo-") as folder:
        file = Path(folder) / "capitals.jsonl"
        file.write_bytes(b"".join(_line(run.model, prompt) for prompt in BATCH))
        batch = await client.create_batch(
            await client.upload(file),
            endpoint=CHAT_URL,
            window=f"{_DEADLINE_S:.0f}s",
            metadata={},
            key=secrets.token_urlsafe(16),
        )
        try:
            batch = await _followed(client, batch, view)
        except BaseException:
            with suppress(ClientError):
                await client.cancel_batch(batch.id)
            raise
        if batch.output_file_id is None:
            raise DemoError(f"{batch.id} is {batch.status}, without any result")
        await client.download(batch.output_file_id, file)
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    took_s = time.monotonic() - began
    done = [await client.task(line["response"]["request_id"]) for line in lines]
    for line, task in zip(lines, done, strict=True):
        view.question(line["custom_id"])
        view.answer(task)
        view.facts(task)
    if batch.request_counts.completed < len(BATCH):
        raise DemoError(
            f"{batch.id}: {batch.request_counts.failed} of {len(BATCH)} requests did not complete"
        )
    view.count("batch", done, took_s)
    return done


def _line(model: str, prompt: str) -> bytes:
    body = chat_body(model, prompt)
    return orjson.dumps({"custom_id": prompt, "method": "POST", "url": CHAT_URL, "body": body}) + b"\n"


async def _followed(client: BatchClient, batch: BatchAnswer, view: DemoView) -> BatchAnswer:
    """The batch once it is final."""
    seen = 0
    with view.batch(len(BATCH)) as advance:
        while not batch.final:
            await asyncio.sleep(_POLL_S)
            batch = await client.batch(batch.id)
            counts = batch.request_counts
            for _ in range(counts.completed + counts.failed - seen):
                advance()
            seen = counts.completed + counts.failed
    return batch


@asynccontextmanager
async def _ended_with(client: Client, task: Task) -> AsyncIterator[None]:
    """A task nobody waits for any more is cancelled: a stack that goes on running is left as it was found."""
    try:
        yield
    except BaseException:
        with suppress(ClientError):
            await client.cancel(task.id)
        raise

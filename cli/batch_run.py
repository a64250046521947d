"""`headrace batch run` and `retry`: from an input file to an output file, through as many interruptions as it takes."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from rich.console import Console

from cli.batch_client import BatchAnswer, BatchClient
from cli.batch_output import Tally, lines_out
from cli.batch_rows import InputError, Prompting, requests_from, requests_of
from cli.batch_view import BatchView
from cli.batch_work import State, Work, digest
from cli.client import CHAT_URL, ClientError

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What `headrace batch run` was asked for."""

    input: Path
    output: Path
    window: str
    prompting: Prompting | None  # None: the input is a file of requests
    metadata: dict[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """Tells whether a folder is of the same command."""
        prompting = asdict(self.prompting) if self.prompting else None
        return digest(self.input, window=self.window, prompting=prompting, metadata=self.metadata)


async def run(client: BatchClient, asked: Asked, console: Console) -> Tally:
    """Run the input to its end and write the output. Raises: ClientError."""
    if asked.output.exists():
        raise ClientError(f"{asked.output} exists; it is not written over")
    if not asked.input.is_file():
        raise InputError(f"{asked.input} is no file")
    work = Work(asked.output)
    name = asked.digest()
    state = work.read(name)
    if state is None:
        endpoint, requests = _requests(asked)
        state = work.begin(name, endpoint, requests)
    else:
        console.print(f"going on with {work.folder}", highlight=False)
    await _submit(client, work, state, asked)
    batches = await _follow(client, state, console)
    failed = [batch for batch in batches if batch.status == "failed"]
    if failed:
        if len(failed) == len(batches):
            work.discard()  # nothing ran: the same command with a better input begins anew
        raise ClientError(_why(failed[0]))
    for number, batch in enumerate(batches):
        for kind, file_id in (("output", batch.output_file_id), ("error", batch.error_file_id)):
            if file_id:
                await client.download(file_id, work.results(number, kind))
    tally = Tally()
    work.finish(lines_out(work, state, rows=asked.prompting is not None, tally=tally))
    return tally


def _requests(asked: Asked) -> tuple[str, Iterable[bytes]]:
    """The requests, and the endpoint that they are for."""
    if asked.prompting is not None:
        return CHAT_URL, requests_from(asked.input, asked.prompting)
    first = next(iter(requests_of(asked.input)), None)
    if first is None:
        raise InputError(f"{asked.input.name} holds no request")
    try:
        line = orjson.loads(first)
        endpoint = line["url"]
        line["custom_id"], line["body"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{asked.input.name} is no file of requests (custom_id, url, body); rows need a --template"
        ) from error
    return str(endpoint), requests_of(asked.input)


async def _submit(client: BatchClient, work: Work, state: State, asked: Asked) -> None:
    for number, chunk in enumerate(state.chunks):
        if chunk.batch_id is not None:
            continue
        if chunk.file_id is None:
            chunk.file_id = await client.upload(work.input(number))
            work.save(state)
        batch = await client.create_batch(
            chunk.file_id,
            endpoint=state.endpoint,
            window=asked.window,
            metadata=asked.metadata,
            key=chunk.key,
        )
        chunk.batch_id = batch.id
        work.save(state)


async def _follow(client: BatchClient, state: State, console: Console) -> list[BatchAnswer]:
    found: dict[str, BatchAnswer] = {}
    ids = [str(chunk.batch_id) for chunk in state.chunks]
    with BatchView(console, sum(chunk.lines for chunk in state.chunks)) as view:
        while True:
            for batch_id in ids:
                if batch_id not in found or not found[batch_id].final:
                    found[batch_id] = await client.batch(batch_id)
            view.show(list(found.values()))
            if all(batch.final for batch in found.values()):
                return [found[batch_id] for batch_id in ids]
            await asyncio.sleep(_POLL_S)


def _why(batch: BatchAnswer) -> str:
    problems = batch.errors.data if batch.errors else []
    told = [
        (f"line {problem.line}: " if problem.line else "") + f"{problem.message} ({problem.code})"
        for problem in problems[:5]
    ]
    return "\n".join([f"{batch.id} failed:", *told, *(["…"] if len(problems) > len(told) else [])])


async def retry(client: BatchClient, batch_id: str, folder: Path) -> BatchAnswer:
    """Submit a batch's failed lines again, as a new batch that is returned. Raises: ClientError."""
    batch = await client.batch(batch_id)
    if not batch.final:
        raise ClientError(f"{batch_id} is {batch.status}; what failed is known once it has ended")
    if batch.error_file_id is None:
        raise ClientError(f"no line of {batch_id} failed")
    errors, requests, again = (folder / f"{name}.jsonl" for name in ("errors", "requests", "again"))
    await client.download(batch.error_file_id, errors)
    await client.download(batch.input_file_id, requests)
    failed = {orjson.loads(line)["custom_id"] for line in requests_of(errors)}
    with again.open("wb") as file:
        for line in requests_of(requests):
            if orjson.loads(line)["custom_id"] in failed:
                file.write(line + b"\n")
    file_id = await client.upload(again)
    return await client.create_batch(
        file_id,
        endpoint=batch.endpoint,
        window=batch.completion_window,
        metadata={**batch.metadata, "retry_of": batch.id},
        key=f"retry {batch.id} {file_id}",
    )

"""Lines of batches, and the way of a batch to its end."""

import json
from collections.abc import Iterable
from typing import Any

from openai import AsyncOpenAI

from tests.support.waiting import eventually_async

FINAL = {"failed", "completed", "expired", "cancelled"}


def request(model: str, custom_id: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """One line."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    """A file of lines."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def upload(openai: AsyncOpenAI, content: bytes) -> str:
    """The id of an input file."""
    return (await openai.files.create(file=("input.jsonl", content), purpose="batch")).id


async def ended(openai: AsyncOpenAI, batch_id: str, within_s: float = 60.0) -> Any:
    """The batch, once it is final."""
    found: list[Any] = []

    async def final() -> bool:
        found[:] = [await openai.batches.retrieve(batch_id)]
        return found[0].status in FINAL

    await eventually_async(final, within_s, f"{batch_id} ended")
    return found[0]


async def results(openai: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file."""
    if file_id is None:
        return []
    return [json.loads(line) for line in (await openai.files.content(file_id)).text.splitlines()]

"""How many tokens a request's prompts have, counted as the engine will count them."""

import asyncio
from collections.abc import Mapping
from typing import Any

from runtime.chat_template import ModelTokenizer, TemplateError
from schemas.errors import RequestError
from schemas.generation import Generation
from schemas.text import prompts_of

_LARGE_CHARACTERS = 20_000  # counted off the event loop: about 5 ms


async def count_prompts(
    tokenizer: ModelTokenizer, request: Generation, body: Mapping[str, Any], within: str
) -> list[int]:
    """Count each prompt of a request, whose engine body is `body`. Raises: RequestError 400."""
    field = request.prompt_field
    count = _count_chat if field == "messages" else _count_texts
    try:
        if len(str(body[field])) > _LARGE_CHARACTERS:
            return await asyncio.to_thread(count, tokenizer, body)
        return count(tokenizer, body)
    except TemplateError as error:
        message = f"The chat template refused the messages: {error}" if field == "messages" else str(error)
        raise RequestError(400, message, f"invalid_{field}", within + field) from error


def _count_chat(tokenizer: ModelTokenizer, body: Mapping[str, Any]) -> list[int]:
    return [tokenizer.count_chat(body)]


def _count_texts(tokenizer: ModelTokenizer, body: Mapping[str, Any]) -> list[int]:
    counts: list[int] = []
    for prompt in prompts_of(body["prompt"]):
        tokens = tokenizer.encode_prompt(prompt)
        if not tokens:
            raise TemplateError("A prompt is empty: there is nothing to go on after.")
        if not isinstance(prompt, str) and max(tokens) >= tokenizer.vocabulary:
            raise TemplateError(f"The model has {tokenizer.vocabulary} tokens: there is no {max(tokens)}.")
        counts.append(len(tokens))
    return counts

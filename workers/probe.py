"""A tiny known generation: does the engine still say what its model says?

Units: `*_s` seconds.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

from workers import body as bodies
from workers.engine import Engine, EngineDeadError, EngineFailedError, GenerateRequest, RequestRejectedError

MAX_TOKENS = 24
PROMPT = "Say one word."  # of a model that was registered without a probe: any text is right then


class ProbeFailedError(Exception):
    """The engine did not generate; says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a probe. Its text is the model's answer to our own question, nobody's secret."""

    right: bool
    text: str
    took_s: float


class Probe:
    """The known generation of one model."""

    def __init__(self, engine: Engine, prompt: str | None, words: Sequence[str]) -> None:
        """`words` must all be in the answer, in any case."""
        self._engine = engine
        self._prompt, self._words = prompt or PROMPT, [word.casefold() for word in words]
        self._numbers = count(1)
        self._chats = True

    async def run(self, timeout_s: float) -> Answer:
        """Generate once. Raises: ProbeFailedError; TimeoutError, which says nothing about a busy engine."""
        if self._chats:
            try:
                return await self._generate(
                    bodies.CHAT, {"messages": [{"role": "user", "content": self._prompt}]}, timeout_s
                )
            except RequestRejectedError:
                self._chats = False  # a base model, without a chat template
        try:
            return await self._generate(bodies.COMPLETIONS, {"prompt": self._prompt}, timeout_s)
        except RequestRejectedError as error:
            raise ProbeFailedError(f"refused: {error}") from error

    async def _generate(self, url: str, asked: Mapping[str, Any], timeout_s: float) -> Answer:
        request = GenerateRequest(
            request_id=f"probe.{next(self._numbers)}.{time.monotonic_ns()}",
            url=url,
            body={**asked, "temperature": 0},
            max_output_tokens=MAX_TOKENS,
        )
        began, pieces, tokens = time.monotonic(), list[str](), 0
        try:
            async with asyncio.timeout(timeout_s), aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    pieces += [delta.text for delta in output.deltas]
                    tokens = output.usage.output_tokens
        except (EngineDeadError, EngineFailedError) as error:
            raise ProbeFailedError(f"{type(error).__name__}: {error}") from error
        text = "".join(pieces)
        right = tokens > 0 and all(word in text.casefold() for word in self._words)
        return Answer(right, text, time.monotonic() - began)

"""What engine tests ask of an engine, and what came back."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from workers.accounts import Account
from workers.engine import Engine, EngineUsage, GenerateRequest, Output

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = "What is the capital of France?"
_numbers = count(1)


def vllm_reader(folder: Path) -> Any:
    """What of a vLLM engine reads prompts and answers, without its processes.

    Configuring vLLM sets LD_PRELOAD and more in the environment, which engines started later would get.
    """
    from vllm import AsyncEngineArgs
    from vllm.renderers import renderer_from_config

    with patch.dict(os.environ):
        arguments = AsyncEngineArgs(model=str(folder), max_model_len=4096, enforce_eager=True)
        config = arguments.create_engine_config()
        return SimpleNamespace(model_config=config.model_config, renderer=renderer_from_config(config))


def chat(content: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    """A greedy chat body."""
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def request(
    body: Mapping[str, Any],
    *,
    url: str = CHAT,
    max_tokens: int = 24,
    emitted: Sequence[int] = (),
    **fields: Any,
) -> GenerateRequest:
    """A request with an id of its own."""
    fields.setdefault("request_id", f"test-{next(_numbers)}")
    fields.setdefault("account", Account())
    return GenerateRequest(
        url=url, body=body, max_output_tokens=max_tokens, emitted_token_ids=emitted, **fields
    )


@dataclass
class Choice:
    """One choice, put together."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop: int | str | None = None
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Result:
    """One request's outputs."""

    choices: dict[int, Choice] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)

    def add(self, output: Output) -> None:
        """Append one item of the stream."""
        self.outputs.append(output)
        for delta in output.deltas:
            choice = self.choices.setdefault(delta.index, Choice())
            assert choice.finish is None, "a delta after the finish reason"
            choice.text += delta.text
            choice.ids += delta.token_ids
            choice.logprobs += delta.logprobs or []
            choice.reasoning += delta.reasoning
            for item in delta.tool_calls:
                if item["index"] == len(choice.calls):
                    choice.calls.append(copy.deepcopy(item))
                else:
                    assert set(item) == {"index", "function"}, "an id or a name is sent once"
                    choice.calls[item["index"]]["function"]["arguments"] += item["function"]["arguments"]
            choice.finish, choice.stop = delta.finish_reason, delta.stop_reason

    @property
    def only(self) -> Choice:
        """The single choice."""
        assert list(self.choices) == [0]
        return self.choices[0]

    @property
    def usage(self) -> EngineUsage:
        """The last counts."""
        return self.outputs[-1].usage


async def run(engine: Engine, given: GenerateRequest) -> Result:
    """Take the whole stream."""
    result = Result()
    async for output in engine.generate(given):
        assert not (result.outputs and result.outputs[-1].finished), "an item after the finished one"
        result.add(output)
    assert result.outputs[-1].finished
    return result

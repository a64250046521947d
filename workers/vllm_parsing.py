"""Tool calls and reasoning read out of a model's text, by vLLM's own parsers.

It alone knows vLLM's `Parser`: which one a model has, how it changes a request before sampling (grammars, special
tokens), and what it makes of each step's text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
)
from vllm.entrypoints.serve.utils.tool_calls_utils import maybe_filter_parallel_tool_calls
from vllm.parser import Parser, ParserManager
from vllm.renderers.chat_utils import make_tool_call_id
from vllm.v1.engine.async_llm import AsyncLLM

from workers.engine import Delta, EngineFailedError


@dataclass(frozen=True, slots=True)
class ParserNames:
    """vLLM's names of a model's parsers."""

    tool: str | None = None
    reasoning: str | None = None


class Parsers:
    """A started model's parsers."""

    def __init__(self, engine: AsyncLLM, names: ParserNames) -> None:
        """Raises: TypeError when there is no parser of that name, or it can't read the model's tokens."""
        self._model_config = engine.model_config
        self._tokenizer = engine.renderer.tokenizer
        self._reads_reasoning = names.reasoning is not None
        self._kind = ParserManager.get_parser(
            tool_parser_name=names.tool,
            reasoning_parser_name=names.reasoning,
            enable_auto_tools=True,
            model_name=self._model_config.model,
            is_harmony=self._model_config.hf_config.model_type == "gpt_oss",
            tokenizer=self._tokenizer,
        )

    def of(self, wire: ChatCompletionRequest, template_kwargs: dict[str, Any]) -> "Reading | None":
        """Prepare to read the answers to a request, which the parser may change; None: there is nothing to read."""
        if self._kind is None or not (self._reads_reasoning or wire.tools):
            return None

        def make() -> Parser:
            assert self._kind is not None
            return self._kind(
                self._tokenizer,
                wire.tools,
                model_config=self._model_config,
                chat_template_kwargs=template_kwargs,
            )

        parser = make()
        parser.adjust_request(wire)
        return Reading(wire, parser, make, template_kwargs)


class Reading:
    """How one request's answers are read."""

    def __init__(
        self, wire: ChatCompletionRequest, first: Parser, make: Any, template_kwargs: dict[str, Any]
    ) -> None:
        self._wire, self._first, self._make, self._template_kwargs = wire, first, make, template_kwargs

    def engine_arguments(self, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """What `generate` must know, so that a grammar begins where the reasoning ends."""
        if self._first.reasoning_parser is None:
            return {}
        return {
            "reasoning_ended": self._wire.resolve_reasoning_ended(self._first, list(prompt_ids)),
            "reasoning_parser_kwargs": {"chat_template_kwargs": self._template_kwargs},
        }

    def readers(self, prompt_ids: Sequence[int]) -> "list[Reader]":
        """One reader a choice: parsers keep state."""
        return [Reader(self._make(), self._wire, list(prompt_ids)) for _ in range(self._wire.n or 1)]


class Reader:
    """Reads one choice, step by step."""

    def __init__(self, parser: Parser, wire: ChatCompletionRequest, prompt_ids: list[int]) -> None:
        self._parser, self._wire, self._prompt_ids = parser, wire, prompt_ids
        self._named = isinstance(wire.tool_choice, ChatCompletionNamedToolChoiceParam)
        self._called: set[int] = set()  # indices of calls that have been named
        self._token_ids: list[int] = []  # of the answer, where there is reasoning to count
        self._reasoned = not wire.include_reasoning  # it was seen, or may have been there unseen

    def read(self, delta: Delta) -> Delta:
        """Take a step's text apart. Raises: EngineFailedError when the parser can't."""
        try:
            message = self._parser.parse_delta(
                delta.text,
                list(delta.token_ids),
                self._wire,
                self._prompt_ids,
                finished=delta.finish_reason is not None,
            )
        except Exception as error:
            raise EngineFailedError(f"the parser can't read the answer: {error!r}") from error
        if self._parser.reasoning_parser is not None:
            self._token_ids += delta.token_ids
        self._reasoned = self._reasoned or bool(message and message.reasoning)
        if message is not None:
            message = maybe_filter_parallel_tool_calls(message, self._wire)
        calls = [] if message is None else [self._call(item) for item in message.tool_calls]
        reason = delta.finish_reason
        if reason == "stop" and self._called and not self._named:
            reason = "tool_calls"
        return replace(
            delta,
            text=(message and message.content) or "",
            reasoning=(message and message.reasoning) or "",
            tool_calls=calls,
            finish_reason=reason,
        )

    @property
    def reasoning_tokens(self) -> int | None:
        """How many tokens of the answer were reasoning; None where the parser can't count them.

        vLLM's parsers say 0 if they have never learnt to count, or where the mark that begins the reasoning stands in
        the prompt.
        """
        if self._parser.reasoning_parser is None:
            return None
        count = self._parser.count_reasoning_tokens
        whole = count(self._token_ids)
        if not whole and self._reasoned:
            whole = count([*self._prompt_ids, *self._token_ids]) - count(self._prompt_ids)
        return whole if whole > 0 or not self._reasoned else None

    def _call(self, item: Any) -> dict[str, Any]:
        """A call's item: the first of an index has its id, type and name, the others more arguments alone."""
        function = item.function
        arguments = (function and function.arguments) or ""
        if item.index in self._called:
            return {"index": item.index, "function": {"arguments": arguments}}
        self._called.add(item.index)
        return {
            "index": item.index,
            "id": item.id or make_tool_call_id(),
            "type": "function",
            "function": {"name": (function and function.name) or "", "arguments": arguments},
        }


def reasoning_tokens(readers: Sequence[Reader] | None) -> int | None:
    """Count the reasoning of all choices; None where that of one is not known."""
    counts = [reader.reasoning_tokens for reader in readers or ()]
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None

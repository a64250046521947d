"""Parts of vLLM's output as parts of ours; on the path of every token, so without classes of vLLM's or copies."""

from collections.abc import Sequence
from typing import Any

from workers.engine import Delta, EngineFailedError, EngineUsage, Output, RequestRejectedError
from workers.vllm_params import Prepared


def logprob_items(ids: Sequence[int], positions: Sequence[Any], top: int) -> list[dict[str, Any]]:
    """OpenAI's chat `logprobs.content` items for ids, from vLLM's {token id: Logprob} a position."""
    items: list[dict[str, Any]] = []
    for token, position in zip(ids, positions, strict=False):
        entries = [_logprob(entry) for entry in position.values()]
        chosen = position.get(token)
        item = entries[0] if chosen is None else _logprob(chosen)
        items.append({**item, "top_logprobs": entries[:top]})
    return items


def _logprob(entry: Any) -> dict[str, Any]:
    token = entry.decoded_token or ""
    value = entry.logprob
    return {
        "token": token,
        "logprob": value if value > -9999.0 else -9999.0,  # JSON has no -inf
        "bytes": list(token.encode("utf-8", "replace")),
    }


def usage(step: Any, prompt_tokens: int, cached: int, made: int, reasoning: int | None = None) -> EngineUsage:
    """The last counts, with the timings vLLM took. `step`: a RequestOutput; `reasoning`: tokens of it."""
    times = step.metrics
    if times is None or not times.first_token_ts:
        return EngineUsage(prompt_tokens, cached, made, reasoning_tokens=reasoning)
    return EngineUsage(
        prompt_tokens,
        cached,
        made,
        max(0.0, times.scheduled_ts - times.queued_ts),
        max(0.0, times.first_token_ts - times.scheduled_ts),
        max(0.0, times.last_token_ts - times.first_token_ts),
        times.num_preemptions,
        reasoning,
    )


def empty(prepared: Prepared, reason: str) -> Output:
    """The one item of a request that need not run."""
    choices = range(prepared.params.n)
    deltas = [Delta(index, "", (), None, reason) for index in choices]
    return Output(deltas, EngineUsage(prepared.prompt_tokens, 0, 0), True)


def failure(step: Any, prepared: Prepared) -> Exception:
    """vLLM ends a request with "error" for trouble of its own, and for a grammar it can't compile."""
    if prepared.params.structured_outputs is not None:
        return RequestRejectedError(
            "the engine can't follow the grammar", "structured_outputs", "invalid_value"
        )
    return EngineFailedError(f"the engine failed the request: {getattr(step, 'error', None)}")

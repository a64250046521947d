"""May the next attempt continue from the tokens already sent, or must it start again?

Continuing is sound when the rest of the output depends on nothing but the tokens so far. Where it is not,
the attempt restarts and the stream says so with a `restarted` event.
"""

from collections.abc import Mapping
from typing import Any


def restart_reason(body: Mapping[str, Any], *, reads_reasoning: bool = False) -> str | None:
    """Name what makes continuing unsound, or None when the attempt may continue.

    `body` is a validated OpenAI request body; `reads_reasoning`: the engine takes reasoning out of chat answers.
    """
    if (body.get("n") or 1) > 1:
        return "n"  # the choices' tokens are interleaved in time, and each has its own state
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        return "prompt"  # several prompts, as several choices
    if body.get("tools") is not None:
        return "tools"  # the parser may have held text back, and its calls have ids that it made up
    if reads_reasoning and body.get("messages") is not None:
        return "reasoning"  # as with tools, what the parser was in the middle of is lost
    if body.get("logprobs") is not None and body["logprobs"] is not False:
        return "logprobs"  # the join's own logprob was conditioned on another batch's state
    if body.get("structured_outputs") is not None or _is_structured(body.get("response_format")):
        return "response_format"  # the grammar's state is lost with the engine
    for penalty in ("frequency_penalty", "presence_penalty"):
        if body.get(penalty):
            return penalty  # counts output tokens; given back as prompt they would not count
    # repetition_penalty may continue: it counts prompt and output alike, so the split does not matter
    if body.get("seed") is not None and body.get("temperature") != 0:
        return "seed"  # the generator's state is not part of the checkpoint
    return None


def _is_structured(response_format: Any) -> bool:
    return isinstance(response_format, Mapping) and response_format.get("type") not in (None, "text")

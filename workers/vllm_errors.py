"""vLLM's exceptions, and what they say about whose fault it was."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from vllm.exceptions import VLLMClientError
from vllm.v1.engine.exceptions import EngineDeadError as VLLMEngineDeadError
from vllm.v1.engine.exceptions import EngineGenerateError

from workers.engine import EngineDeadError, EngineFailedError, RequestRejectedError

# Raised by a caller's value while vLLM prepared the request: a mistake of theirs, not of the server.
_CALLERS_MISTAKES = (ValueError, TypeError, OverflowError, KeyError)
_TOO_LONG = ("input_tokens", "input_text")


def translate(error: Exception, prompt_field: str, body: Mapping[str, Any]) -> Exception:
    """The contract's exception for one of vLLM's. `prompt_field`: what the caller calls the prompt."""
    if isinstance(error, RequestRejectedError | EngineDeadError | EngineFailedError):
        return error
    if isinstance(error, VLLMEngineDeadError):
        return EngineDeadError("the vLLM engine ended")
    if isinstance(error, VLLMClientError):
        parameter = getattr(error, "parameter", None)
        message = str(error.args[0]) if error.args else str(error)
        if parameter in _TOO_LONG:
            return RequestRejectedError(message, prompt_field, "context_length_exceeded")
        return RequestRejectedError(message, parameter or _field(message, body), "invalid_value")
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        return RequestRejectedError(f"{param}: {first['msg']}", param, "invalid_value")
    if isinstance(error, EngineGenerateError):
        cause = error.__cause__
        if isinstance(cause, VLLMClientError):
            return translate(cause, prompt_field, body)
        if isinstance(cause, _CALLERS_MISTAKES):
            return RequestRejectedError(f"the engine can't take it: {cause}", None, "invalid_value")
        return EngineFailedError(f"the engine failed: {cause!r}")
    if isinstance(error, _CALLERS_MISTAKES):
        return RequestRejectedError(f"the engine can't take it: {error}", None, "invalid_value")
    return EngineFailedError(f"the engine failed: {error!r}")


def _field(message: str, body: Mapping[str, Any]) -> str | None:
    """The field a message without one is about: vLLM often begins with it ("n must be 1 when ...")."""
    first = message.split(" ", 1)[0].strip("`'")
    if first in body:
        return first
    if any(word in message.lower() for word in ("grammar", "schema", "regex", "structured", "json")):
        return next((name for name in ("structured_outputs", "response_format") if body.get(name)), None)
    return None

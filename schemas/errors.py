"""The one error a request can get, and its wire form: OpenAI's envelope with all four keys.

Source: OpenAI's error object; RFC 9457 for routes outside the OpenAI surface.
"""

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    410: "gone_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass
class RequestError(Exception):
    """A request that is refused or failed; becomes a response in `api.errors` alone."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """Return the envelope."""
        return error_body(self.status, self.message, self.code, self.param)


def error_body(status: int, message: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """Build `{"error": {message, type, param, code}}`."""
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "api_error"),
            "param": param,
            "code": code,
        }
    }


def overloaded(message: str, code: str, retry_after_s: float) -> RequestError:
    """503: the platform's capacity, worth trying again after that time."""
    return RequestError(503, message, code, headers={"Retry-After": str(max(1, round(retry_after_s)))})


# Set by the server and dangerous or meaningless from outside: refused by this name, not as unknown.
SERVER_OWNED = frozenset(
    {"cache_salt", "request_id", "kv_transfer_params", "vllm_xargs", "chat_template", "priority"}
)
# Parts of the OpenAI surface that this version does not serve.
UNSUPPORTED = frozenset(
    {
        "functions",
        "function_call",
        "audio",
        "web_search_options",
        "suffix",
        "modalities",
        "webhook",
        "conversation",
        "prompt",
        "context_management",
        "moderation",
        "image",
        "max_tool_calls",
        "prompt_cache_options",
    }
)


def of_validation(error: ValidationError, within: str = "") -> RequestError:
    """Turn the first finding of pydantic into a 400 that names the field; `within` prefixes its path."""
    found = error.errors(include_url=False)
    unknown = [one for one in found if one["type"] == "extra_forbidden"]
    # In a union of shapes the deepest finding is the one about the shape that was meant.
    first = unknown[0] if unknown else max(found, key=lambda one: len(one["loc"]))
    place = [*first["loc"], *([first["ctx"]["field"]] if first["type"] == "clash" else [])]
    param = within + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if _is_field(part)
    )
    param = param.lstrip(".")
    name = str(first["loc"][-1]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        if name in SERVER_OWNED:
            return RequestError(400, f"{param} is set by the server.", "server_owned_parameter", param)
        if name in UNSUPPORTED:
            return RequestError(400, f"{param} is not supported.", "unsupported_parameter", param)
        return RequestError(400, f"Unknown parameter: {param}.", "unknown_parameter", param)
    if first["type"] == "missing":
        return RequestError(400, f"Missing required parameter: {param}.", "missing_required_parameter", param)
    return RequestError(
        400, f"Invalid {param or 'body'}: {_plain(first['msg'])}.", "invalid_value", param or None
    )


def _is_field(part: int | str) -> bool:
    # pydantic puts the tried alternative of a union into the path: `str`, `list[...]`, a model's name
    return isinstance(part, int) or (part[:1].islower() and "[" not in part and part not in _UNION_TAGS)


_UNION_TAGS = frozenset({"str", "int", "float", "bool", "constrained-str", "literal", "function-after"})


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").rstrip(".")

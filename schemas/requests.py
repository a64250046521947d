"""The OpenAI requests that a task can be: one type a route, for tasks and batch lines as for the routes themselves."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.chat import ChatCompletionRequest
from schemas.errors import of_validation
from schemas.generation import Generation
from schemas.text import CompletionRequest

Body = TypeVar("Body", bound=BaseModel)

REQUESTS: dict[str, type[Generation]] = {
    kind.url: kind for kind in (ChatCompletionRequest, CompletionRequest)
}


def validate(model: type[Body], parsed: dict[str, Any], within: str = "") -> Body:
    """Validate against a schema; `within` names the place of `parsed` in the whole body.

    Raises: RequestError 400 naming the field.
    """
    try:
        return model.model_validate(parsed)
    except ValidationError as error:
        raise of_validation(error, within) from error

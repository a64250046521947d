"""What the API answers, as commands read it; fields that this version doesn't know are left out.

Units: `*_ms` milliseconds, `*_usd_micros` millionths of a USD.
"""

from typing import Any

from pydantic import BaseModel, Field

from core.states import FINAL, TaskState


class PromptDetails(BaseModel):
    """OpenAI's prompt_tokens_details."""

    cached_tokens: int = 0


class Usage(BaseModel):
    """OpenAI's `usage`."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails = Field(default_factory=PromptDetails)


class Timings(BaseModel):
    """Where a task's time went; None for what has not happened."""

    queued_ms: int | None = None  # from acceptance to a worker's claim
    first_token_ms: int | None = None  # from acceptance too
    total_ms: int | None = None  # from acceptance to the end


class Problem(BaseModel):
    """Why a task failed."""

    code: str
    message: str


class Task(BaseModel):
    """A task as its owner sees it."""

    id: str
    status: TaskState
    lane: str
    attempt: int
    usage: Usage | None = None
    cost_usd_micros: int | None = None
    timings: Timings = Field(default_factory=Timings)
    finish_reason: str | None = None
    error: Problem | None = None
    response: dict[str, Any] | None = None

    raw: str = ""  # the JSON text that this was read from

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in FINAL

    @property
    def text(self) -> str:
        """The first choice's text; empty without a response."""
        if not self.response:
            return ""
        choice = self.response["choices"][0]
        return str((choice["message"]["content"] if "message" in choice else choice["text"]) or "")


class Event(BaseModel):
    """One event of a task's stream; fields beside these two depend on the type."""

    model_config = {"extra": "allow"}

    sequence: int
    type: str

    @property
    def text(self) -> str:
        """What it adds to the first choice's text."""
        choices = (self.model_extra or {}).get("choices", ())
        first = next((choice for choice in choices if choice["index"] == 0), None)
        if first is None:
            return ""
        return str((first["delta"].get("content") if "delta" in first else first.get("text")) or "")


class ModelName(BaseModel):
    """One of the models that a key may use."""

    id: str


class Models(BaseModel):
    """All of them."""

    data: list[ModelName]

"""Bodies of /v1/admin. As everywhere, unknown fields and wrong types are refused by name."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from core.grants import GrantLimits
from core.lanes import Priority
from core.scopes import USUAL, Scope
from schemas.requests import REQUESTS
from schemas.strict import INT64_MAX, Strict, clash

DAY_S = 24 * 3600.0
YEAR_S = 366 * 24 * 3600.0
MONTH_S = 31 * 24 * 3600.0
# no `_`: ids have one, and a name must never be taken for one
TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$")]
TenantClass = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
KeyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}$")]
Retention = Annotated[float, Field(ge=60, le=10 * YEAR_S)]
Weight = Annotated[float, Field(ge=0.01, le=1000)]
SyncLimit = Annotated[float, Field(gt=0, le=DAY_S)]
# strict mode takes an enum's members only; from JSON they come as their values
Scopes = Annotated[frozenset[Annotated[Scope, Field(strict=False)]], Field(min_length=1, strict=False)]
INT32_MAX = 2**31 - 1
Bound = Annotated[int, Field(ge=1, le=INT32_MAX)]
TokenBound = Annotated[int, Field(ge=1, le=INT64_MAX)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,199}$")]

ModelVersion = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]

Parser = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


def _is_served(endpoint: str) -> str:
    if endpoint not in REQUESTS:
        raise ValueError(f"must be one of {', '.join(sorted(REQUESTS))}")
    return endpoint


Endpoint = Annotated[str, AfterValidator(_is_served)]
Lifetime = Annotated[float, Field(gt=0, le=10 * YEAR_S)]


class TenantCreate(Strict):
    """Body of POST /v1/admin/tenants."""

    name: TenantName
    class_: Annotated[TenantClass, Field(alias="class")] = (
        "default"  # what metrics show instead of the tenant
    )
    retention_s: Retention | None = (
        None  # of prompts and outputs, from the end of the task; null: the deployment's
    )
    store: bool = True  # false: prompts and outputs go once they are delivered
    weight: Weight = 1.0  # its share of a model while more waits than can run
    max_queued_tasks: Bound | None = None  # of each model; null: the deployment's
    max_queued_tokens: TokenBound | None = None  # likewise; prompt and maximum output
    max_running_tasks: Bound | None = None  # at once, over all models; null: any number


class TenantChange(Strict):
    """Body of PATCH /v1/admin/tenants/{tenant}: what is left out stays."""

    disabled: bool = False
    class_: Annotated[TenantClass, Field(alias="class")] = "default"
    retention_s: Retention | None = None
    store: bool = True
    weight: Weight = 1.0
    max_queued_tasks: Bound | None = None
    max_queued_tokens: TokenBound | None = None
    max_running_tasks: Bound | None = None


class KeyCreate(Strict):
    """Body of POST /v1/admin/keys."""

    tenant: str
    name: KeyName
    scopes: Scopes = USUAL
    expires_in_s: Lifetime | None = None  # null: never


class KeyChange(Strict):
    """Body of PATCH /v1/admin/keys/{key}: what is left out stays."""

    name: KeyName = ""
    scopes: Scopes = USUAL
    expires_in_s: Lifetime | None = None  # null: never

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise clash("name", "or scopes or expires_in_s is needed")
        return self


class GrantPut(Strict):
    """Body of PUT /v1/admin/tenants/{tenant}/grants/{model}: limits; null or left out: none."""

    max_prompt_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None  # of each choice
    max_open_tasks: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = (
        None  # queued and running at the same time
    )
    priorities: Annotated[list[Annotated[Priority, Field(strict=False)]], Field(min_length=1)] | None = None
    endpoints: Annotated[list[Endpoint], Field(min_length=1)] | None = None

    @property
    def limits(self) -> GrantLimits:
        """The limits, each list in one order: what means the same is the same."""
        return GrantLimits(
            self.max_prompt_tokens,
            self.max_output_tokens,
            self.max_open_tasks,
            None if self.priorities is None else tuple(p for p in Priority if p in self.priorities),
            None if self.endpoints is None else tuple(sorted(set(self.endpoints))),
        )


ProbeText = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]


class ModelPut(Strict):
    """Body of PUT /v1/admin/models/{model}."""

    path: Annotated[
        str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=1024)
    ]  # as API and workers see it
    version: ModelVersion | None = None  # of what is there: tasks and ledger keep it, prices may be of one
    max_model_len: Annotated[int, Field(ge=16, le=INT32_MAX)] | None = None  # null: the model's own
    default_max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None  # null: fill the context
    short_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] = 512
    medium_tokens: Annotated[int, Field(ge=2, le=INT32_MAX)] = 2048
    tool_parser: Parser | None = None  # vLLM's parser of tool calls; null: no tools are served
    reasoning_parser: Parser | None = None  # vLLM's parser of reasoning; null: all is answer
    probe_prompt: ProbeText | None = None  # what workers ask now and then to see that the model is well
    # all are in the answer, in any case
    probe_words: Annotated[list[ProbeText], Field(max_length=16, default_factory=list)]
    sync_start_s: SyncLimit | None = (
        None  # a synchronous call not started by then gets 503; null: the setting's
    )
    sync_finish_s: SyncLimit | None = None  # of a plain one, from its start; likewise
    sync_stream_s: SyncLimit | None = None  # of a streamed one, from its start; likewise

    @model_validator(mode="after")
    def _words_need_a_prompt(self) -> Self:
        if self.probe_words and self.probe_prompt is None:
            raise clash("probe_words", "needs probe_prompt")
        return self


class KeyRotate(Strict):
    """Body of POST /v1/admin/keys/{key}/rotate."""

    overlap_s: Annotated[float, Field(ge=0, le=MONTH_S)] = 24 * 3600.0  # for which the old key opens too

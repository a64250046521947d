"""Rows as the rest of the code sees them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from core.failures import Failure
from core.grants import NO_LIMITS, GrantLimits
from core.lanes import Lane, LengthBounds, LengthClass, Priority
from core.pricing import NOTHING, Tariff, Usage
from core.states import TaskState


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking: an API key and its tenant."""

    key_id: str
    tenant_id: str
    tenant_class: str = "default"  # what metrics show instead of the tenant


@dataclass(frozen=True, slots=True)
class Model:
    """A registered model."""

    name: str
    path: str
    max_model_len: int  # tokens
    default_max_tokens: int | None  # tokens; None fills the context
    bounds: LengthBounds
    owned_by: str
    created_at: datetime
    limits: GrantLimits = NO_LIMITS  # where it is read as granted to a tenant
    tool_parser: str | None = None  # vLLM's name of it; None: the model is given no tools
    reasoning_parser: str | None = None  # likewise; None: all its output is answer
    probe_prompt: str | None = None  # what workers ask it to see that it is well
    probe_words: tuple[str, ...] = ()  # all are in its answer, in any case
    sync_start_s: float | None = None  # limits of synchronous calls; None: the settings'
    sync_finish_s: float | None = None
    sync_stream_s: float | None = None
    version: str | None = None  # of the weights, as the operator names it


@dataclass(frozen=True, slots=True)
class SyncLimits:
    """How long synchronous calls of a model may take; None: the settings'. Units: s."""

    sync_start_s: float | None = None
    sync_finish_s: float | None = None
    sync_stream_s: float | None = None


@dataclass(frozen=True, slots=True)
class NewResponse:
    """What makes a task a response: one row of `responses`."""

    id: str
    previous_id: str | None
    background: bool
    stored: bool  # False: nobody may read it later
    input: str  # JSON text, its items
    request: str  # JSON text, what it was asked for beside the input


@dataclass(frozen=True, slots=True)
class NewTask:
    """What admission decided; becomes one row of `tasks` and one of `task_payloads`."""

    id: str
    caller: Caller
    lane: Lane
    url: str
    request: str  # JSON text
    prompt_tokens: int
    max_output_tokens: int
    deadline_s: float  # from now
    max_attempts: int
    metadata: dict[str, str] = field(default_factory=dict)
    retry_of: str | None = None
    choices: int = 1  # outputs of that length that it may make
    reserved_tokens: int | None = None  # drawn from the token limits, where there are any
    hold_usd_micros: int | None = None  # the most that it can cost; None: it counts against no budget
    traceparent: str | None = None  # W3C; None: not traced
    webhook: str | None = None  # the URL that is told of the end
    response: NewResponse | None = None
    store: bool = True  # False: no bodies after delivery
    max_open_tasks: int | None = None  # of its tenant and model, this one included; None: any number
    prefix_key: int | None = None  # of batch work: core.prefix
    in_order: bool = False  # among its tenant's it ranks by its acceptance alone, however long it is


@dataclass(frozen=True, slots=True)
class Task:
    """One task as callers may see it; bodies are read apart."""

    id: str
    tenant_id: str
    lane: Lane
    url: str
    state: TaskState
    attempt: int
    prompt_tokens: int
    max_output_tokens: int
    created_at: datetime
    deadline_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    finish_reason: str | None
    failure: Failure | None
    failure_message: str | None
    usage: Usage | None
    cost_usd_micros: int | None
    ttft_ms: int | None
    store: bool  # False: bodies go once they are delivered
    purged: bool  # bodies are gone
    retry_of: str | None
    metadata: dict[str, str]
    estimated_wait_s: float | None = None  # at acceptance, of what was accepted just now

    @classmethod
    def accepted(cls, new: NewTask, created_at: datetime, deadline_at: datetime, store: bool) -> "Task":
        """Build what was just inserted, so that it need not be read back."""
        return cls(
            id=new.id,
            tenant_id=new.caller.tenant_id,
            lane=new.lane,
            url=new.url,
            state=TaskState.QUEUED,
            attempt=0,
            prompt_tokens=new.prompt_tokens,
            max_output_tokens=new.max_output_tokens,
            created_at=created_at,
            deadline_at=deadline_at,
            started_at=None,
            finished_at=None,
            finish_reason=None,
            failure=None,
            failure_message=None,
            usage=None,
            cost_usd_micros=None,
            ttft_ms=None,
            store=store,
            purged=False,
            retry_of=new.retry_of,
            metadata=new.metadata,
        )

    @classmethod
    def of(cls, row: Any) -> "Task":
        """Build from a row of `storage.tasks.SELECT_TASK`."""
        usage = None
        if row.finished_at is not None:
            usage = Usage(row.usage_prompt_tokens, row.usage_cached_tokens, row.usage_output_tokens)
        return cls(
            id=row.id,
            tenant_id=row.tenant_id,
            lane=Lane(row.model, LengthClass(row.length_class), Priority(row.priority)),
            url=row.url,
            state=TaskState(row.state),
            attempt=row.attempt,
            prompt_tokens=row.prompt_tokens,
            max_output_tokens=row.max_output_tokens,
            created_at=row.created_at,
            deadline_at=row.deadline_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            finish_reason=row.finish_reason,
            failure=Failure(row.failure) if row.failure else None,
            failure_message=row.failure_message,
            usage=usage,
            cost_usd_micros=row.cost_usd_micros,
            ttft_ms=row.ttft_ms,
            store=row.store,
            purged=row.purged_at is not None,
            retry_of=row.retry_of,
            metadata=row.metadata,
        )


@dataclass(frozen=True, slots=True)
class Used:
    """What a task used so far, all attempts together; what was streamed and taken back is not in it."""

    usage: Usage = NOTHING
    engine_us: int = 0


UNUSED = Used()


@dataclass(frozen=True, slots=True)
class Claim:
    """A task handed to one attempt; `attempt` is its fencing token."""

    task_id: str
    tenant_id: str
    attempt: int
    url: str
    request: str  # JSON text
    max_output_tokens: int
    prompt_tokens: int
    created_at: datetime
    remaining_s: float  # to the deadline
    waited_s: float  # since acceptance
    lane: Lane
    preemptions: int  # times it lent its slot to a person, in all attempts
    failures: int  # attempts that ended badly and may have been its own fault: above 0 it is a suspect
    tariff: Tariff  # in force when the task was accepted; all zero where the model has none
    used: Used  # by the attempts before
    tenant_class: str = "default"
    traceparent: str | None = None  # W3C
    batch_id: str | None = None  # of what is traced
    key_id: str = ""
    reserved_tokens: int | None = None  # of the token limits: what it does not use goes back
    turned_back: int = 0  # times that a claim found no place for it


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt whose lease ran out, found by the rescuer."""

    task_id: str
    tenant_id: str
    lane: Lane
    attempt: int
    worker: str
    created_at: datetime  # the task
    claimed_at: datetime
    lease_expired_at: datetime
    found_at: datetime
    traceparent: str | None
    batch_id: str | None


@dataclass(frozen=True, slots=True)
class Held:
    """A lease to renew. `cleared`: the attempt has produced tokens, so it is not what kills its engine."""

    task_id: str
    attempt: int
    cleared: bool = False
    used: Used = UNUSED
    preemptions: int = 0  # of the task, so far


@dataclass(frozen=True, slots=True)
class Lost:
    """A task whose lease ran out and that is not to be tried again."""

    task_id: str
    attempt: int
    prompt_tokens: int  # as counted at admission
    late: bool  # its deadline passed
    tariff: Tariff  # as in Claim
    used: Used  # as last renewed
    told: LostAttempt


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ends its task: one row of what `storage.settle` writes."""

    task_id: str
    attempt: int
    state: TaskState  # final
    usage: Usage
    cost_usd_micros: int = 0  # charged unless the failure is ours
    engine_us: int = 0  # of all attempts
    tariff_id: int | None = None  # what it was priced by
    finish_reason: str | None = None
    failure: Failure | None = None
    failure_message: str | None = None
    response: str | None = None  # JSON text; partial output too
    ttft_ms: int | None = None
    preemptions: int = 0  # of the task, over all attempts

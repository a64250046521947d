"""Tables of the Postgres schema, as `migrations` creates them.

A task is one row of `tasks` (what decisions read) and one of `task_payloads` (bodies, only read whole).
Rules of `core.states` stand here again as CHECK constraints, so that no bug and no hand can break them.

Units: `*_usd_micros` integer micro-USD (tariffs: per million tokens); `*_at` timestamptz of the database clock.
"""

from collections.abc import Iterable
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from core.failures import Failure
from core.health import Health
from core.lanes import LengthClass, Priority
from core.scopes import USUAL, Scope
from core.states import FINAL, RUNNING, TaskState

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def one_of(column: str, values: object) -> str:
    """SQL of a CHECK that a column holds one of an enum's values."""
    return f"{column} IN ({', '.join(repr(str(v)) for v in sorted(values))})"  # type: ignore[call-overload]


_UNPUBLISHED = "state = 'queued' AND published_at IS NULL"


def array_of(values: Iterable[StrEnum]) -> str:
    """SQL of an array of an enum's values."""
    return f"ARRAY[{', '.join(repr(str(v)) for v in sorted(values))}]::text[]"


def created_at() -> sa.Column[object]:
    """The column of a row's moment of insertion."""
    return sa.Column("created_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now())


tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("class", sa.Text, nullable=False, server_default="default"),  # a label of metrics: few of them
    created_at(),
    sa.Column("disabled_at", sa.TIMESTAMP(True)),  # its keys open nothing, its queued tasks end as forbidden
    sa.Column("retention_s", sa.Float),  # of bodies; null: the deployment's
    sa.Column(
        "store", sa.Boolean, nullable=False, server_default=sa.true()
    ),  # false: as if all asked store=false
    sa.CheckConstraint("retention_s > 0", name="retention"),
    sa.Column("weight", sa.Float, nullable=False, server_default="1"),  # share of a model under contention
    sa.Column("max_queued_tasks", sa.Integer),  # bounds of its backlog; null: the settings'
    sa.Column("max_queued_tokens", sa.BigInteger),
    sa.Column("max_running_tasks", sa.Integer),  # at once, over all models; null: any number
    sa.CheckConstraint("weight > 0", name="weight"),
    sa.CheckConstraint("max_running_tasks > 0", name="max_running_tasks"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("lookup", sa.Text, nullable=False, unique=True),  # first characters of the key, not secret
    sa.Column("digest", sa.LargeBinary, nullable=False),  # HMAC-SHA256 of the key under the pepper
    created_at(),
    sa.Column("expires_at", sa.TIMESTAMP(True)),
    sa.Column("revoked_at", sa.TIMESTAMP(True)),
    sa.Column("scopes", sa.ARRAY(sa.Text), nullable=False, server_default=sa.text(array_of(USUAL))),
    sa.Column("last_used_at", sa.TIMESTAMP(True)),  # to the minute
    sa.Column("replaced_by", sa.Text),  # the key that its rotation made
    sa.Column("first_id", sa.Text),  # the key whose rotations led to this one; null: none did
    sa.CheckConstraint(f"scopes <> '{{}}' AND scopes <@ {array_of(Scope)}", name="scopes"),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),  # what callers send as `model`; may hold slashes
    sa.Column("path", sa.Text, nullable=False),  # folder of weights, tokenizer and chat template
    sa.Column("max_model_len", sa.Integer, nullable=False),  # tokens, prompt and output together
    sa.Column("default_max_tokens", sa.Integer),  # of requests that ask for none; null: fill the context
    sa.Column("short_tokens", sa.Integer, nullable=False),  # bounds of the length classes
    sa.Column("medium_tokens", sa.Integer, nullable=False),
    sa.Column("owned_by", sa.Text, nullable=False, server_default="headrace"),
    sa.Column("tool_parser", sa.Text),  # names of vLLM's parsers; null: tools, or reasoning, are not served
    sa.Column("reasoning_parser", sa.Text),
    sa.Column(
        "probe_prompt", sa.Text
    ),  # what workers ask their engine to see that it is well; null: anything
    sa.Column("probe_words", sa.ARRAY(sa.Text), nullable=False, server_default="{}"),  # all are in its answer
    created_at(),
    sa.Column("version", sa.Text),  # of the weights, as the operator names it; null: it is not named
    sa.Column("sync_start_s", sa.Float),  # limits of synchronous calls; null: the settings'
    sa.Column("sync_finish_s", sa.Float),
    sa.Column("sync_stream_s", sa.Float),
    sa.CheckConstraint("0 < short_tokens AND short_tokens < medium_tokens", name="bounds_rise"),
    sa.CheckConstraint("max_model_len > 0", name="has_context"),
)

grants = sa.Table(
    "grants",
    metadata,
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("model", sa.ForeignKey("models.name", ondelete="CASCADE"), primary_key=True),
    created_at(),
    # limits; null: none
    sa.Column("max_prompt_tokens", sa.Integer),
    sa.Column("max_output_tokens", sa.Integer),
    sa.Column("max_open_tasks", sa.Integer),  # queued and running at the same time
    sa.Column("priorities", sa.ARRAY(sa.Text)),
    sa.Column("endpoints", sa.ARRAY(sa.Text)),  # routes of the OpenAI surface
    sa.CheckConstraint(
        "max_prompt_tokens > 0 AND max_output_tokens > 0 AND max_open_tasks > 0", name="limits_positive"
    ),
    sa.CheckConstraint(f"priorities <> '{{}}' AND priorities <@ {array_of(Priority)}", name="priorities"),
    sa.CheckConstraint("endpoints <> '{}'", name="endpoints"),
)

# Append-only: a trigger refuses to change or delete entries.
audit_entries = sa.Table(
    "audit_entries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # sorts by time
    created_at(),
    sa.Column("actor_key_id", sa.Text),  # null: a command that works on the database itself
    sa.Column("actor", sa.Text, nullable=False),  # the key's first characters and its tenant, or the command
    sa.Column("request_id", sa.Text),
    sa.Column("action", sa.Text, nullable=False),  # such as key.revoke
    sa.Column("object_id", sa.Text, nullable=False),
    sa.Column("tenant_id", sa.Text),  # whom the change concerns; null: everybody
    sa.Column("before", JSONB),  # null: there was none
    sa.Column("after", JSONB),  # null: there is none now
    sa.Index("ix_audit_entries_tenant", "tenant_id", "id"),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # sorts by time
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.ForeignKey("api_keys.id"), nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("version", sa.Text),  # of the model, as registered when the task was accepted
    sa.Column("url", sa.Text, nullable=False),  # the OpenAI route the request belongs to
    sa.Column("priority", sa.Text, nullable=False),
    sa.Column("length_class", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default=TaskState.QUEUED.value),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),  # the fencing token
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),  # attempts that count
    sa.Column("max_attempts", sa.Integer, nullable=False),
    # sent to the engine by the newest attempt and no token since: what it may have killed, it is blamed for
    sa.Column("exposed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("prompt_tokens", sa.Integer, nullable=False),  # as counted at admission
    sa.Column("max_output_tokens", sa.Integer, nullable=False),
    created_at(),
    sa.Column("deadline_at", sa.TIMESTAMP(True), nullable=False),
    sa.Column("published_at", sa.TIMESTAMP(True)),  # null: the broker may not know of it (outbox)
    # times that a claim found no place for it: who published it before must not mark it after
    sa.Column("turned_back", sa.Integer, nullable=False, server_default="0"),
    sa.Column("started_at", sa.TIMESTAMP(True)),  # first claim
    sa.Column("claimed_at", sa.TIMESTAMP(True)),  # newest claim
    sa.Column("lease_expires_at", sa.TIMESTAMP(True)),
    sa.Column("worker", sa.Text),  # of the newest attempt
    sa.Column("finished_at", sa.TIMESTAMP(True)),
    sa.Column("finish_reason", sa.Text),  # the engine's
    sa.Column("failure", sa.Text),  # ours
    sa.Column("failure_message", sa.Text),  # public; never a body
    sa.Column("usage_prompt_tokens", sa.Integer),
    sa.Column("usage_cached_tokens", sa.Integer),
    sa.Column("usage_output_tokens", sa.Integer),
    sa.Column("engine_us", sa.BigInteger, nullable=False, server_default="0"),  # of all attempts so far
    sa.Column(
        "store", sa.Boolean, nullable=False, server_default=sa.true()
    ),  # false: no bodies after delivery
    sa.Column("delivered_at", sa.TIMESTAMP(True)),  # of bodies that are not to be stored
    sa.Column("purged_at", sa.TIMESTAMP(True)),  # bodies deleted; lengths, times and counts stay
    sa.Column("preemptions", sa.Integer, nullable=False, server_default="0"),  # slots lent to a person
    sa.Column("ttft_ms", sa.Integer),  # from acceptance; null where the first token came from a lost attempt
    sa.Column("reserved_tokens", sa.Integer),  # drawn from the token limits; null: there were none
    sa.Column("retry_of", sa.Text),  # the dead task that this one does again
    sa.Column("traceparent", sa.Text),  # W3C: the trace that the task belongs to; null: not traced
    sa.Column("metadata", JSONB, nullable=False, server_default="{}"),
    sa.Column("webhook", sa.Text),  # the URL that is told of the end
    sa.Column("webhook_at", sa.TIMESTAMP(True)),  # when its delivery was queued
    sa.Column("rank_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),  # core.ranking
    sa.Column("prefix_key", sa.BigInteger),  # of batch work: equal for requests that begin alike
    sa.CheckConstraint(one_of("state", TaskState), name="state"),
    sa.CheckConstraint(one_of("priority", Priority), name="priority"),
    sa.CheckConstraint(one_of("length_class", LengthClass), name="length_class"),
    sa.CheckConstraint(f"failure IS NULL OR {one_of('failure', Failure)}", name="failure"),
    sa.CheckConstraint(
        f"({one_of('state', RUNNING)}) = (lease_expires_at IS NOT NULL)", name="running_has_lease"
    ),
    sa.CheckConstraint(f"({one_of('state', FINAL)}) = (finished_at IS NOT NULL)", name="final_has_end"),
    sa.CheckConstraint("attempt >= 0 AND failures >= 0 AND failures <= attempt", name="attempt"),
    sa.CheckConstraint("state <> 'completed' OR usage_output_tokens IS NOT NULL", name="completed_has_usage"),
    sa.Index("ix_tasks_tenant_list", "tenant_id", "id"),
    sa.Index("ix_tasks_open", "tenant_id", "model", postgresql_where=sa.text("finished_at IS NULL")),
    sa.Index("ix_tasks_failed", "id", postgresql_where=sa.text("state = 'failed'")),
    # What waits is read by its heads and its edges, never as a whole: the cost of a look is not the queue's depth
    sa.Index(
        "ix_tasks_waiting",
        *("model", "priority", "tenant_id", "length_class", "rank_at", "id"),
        postgresql_where=sa.text(_UNPUBLISHED),
    ),
    sa.Index(
        "ix_tasks_waiting_prefix",
        *("model", "tenant_id", "length_class", "prefix_key", "rank_at", "id"),
        postgresql_where=sa.text(f"{_UNPUBLISHED} AND prefix_key IS NOT NULL"),
    ),
    sa.Index("ix_tasks_unpublished", "id", postgresql_where=sa.text(_UNPUBLISHED)),
    sa.Index(
        "ix_tasks_published",
        *("model", "length_class", "priority", "id"),
        postgresql_where=sa.text("state = 'queued' AND published_at IS NOT NULL"),
    ),
    sa.Index("ix_tasks_queued_deadline", "deadline_at", postgresql_where=sa.text("state = 'queued'")),
    sa.Index(
        "ix_tasks_purgeable",
        "tenant_id",
        "finished_at",
        postgresql_where=sa.text("purged_at IS NULL AND finished_at IS NOT NULL"),
    ),
    sa.Index(
        "ix_tasks_unkept",
        "finished_at",
        postgresql_where=sa.text("NOT store AND purged_at IS NULL AND finished_at IS NOT NULL"),
    ),
    sa.Index(
        "ix_tasks_webhook",
        "finished_at",
        postgresql_where=sa.text("webhook IS NOT NULL AND webhook_at IS NULL AND finished_at IS NOT NULL"),
    ),
    sa.Index("ix_tasks_running", "id", postgresql_where=sa.text(one_of("state", RUNNING))),
    # leases are renewed every second: no index on lease_expires_at keeps those updates heap-only
    postgresql_with={"fillfactor": "80"},
)

# What stays of bodies: see `storage.retention`.
purged_bodies = sa.Table(
    "purged_bodies",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("request_bytes", sa.Integer, nullable=False),
    sa.Column("request_hash", sa.LargeBinary, nullable=False),  # HMAC-SHA256
    sa.Column("response_bytes", sa.Integer),
    sa.Column("response_hash", sa.LargeBinary),
)

task_payloads = sa.Table(
    "task_payloads",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    # Text, not jsonb: a body is read whole, and jsonb refuses NUL characters that models do produce
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("response", sa.Text),
)

responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, unique=True),
    sa.Column("previous_id", sa.Text),  # the conversation goes on from there; that one may be deleted since
    sa.Column("background", sa.Boolean, nullable=False),
    sa.Column("input", sa.Text, nullable=False),  # JSON, its items
    sa.Column("request", sa.Text, nullable=False),  # JSON, what was asked for beside the input
    created_at(),
    sa.Column("deleted_at", sa.TIMESTAMP(True)),  # unknown from then on, and purged once its task is final
    sa.Index("ix_responses_deleted", "deleted_at", postgresql_where=sa.text("deleted_at IS NOT NULL")),
)

webhook_secrets = sa.Table(
    "webhook_secrets",
    metadata,
    sa.Column(
        "id", sa.Text, primary_key=True
    ),  # the secret is derived from it, under the deployment's pepper
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False, index=True),
    created_at(),
    sa.Column("expires_at", sa.TIMESTAMP(True)),  # set when it was replaced: both sign until then
)

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # the webhook-id, the same at every try
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    # null, both: it tells of something else than a task's or a batch's end
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), unique=True),
    sa.Column("batch_id", sa.Text, sa.ForeignKey("batches.id", ondelete="CASCADE"), unique=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # JSON as it is signed and sent; no texts
    sa.Column("state", sa.Text, nullable=False, server_default="pending"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),  # begun
    sa.Column("next_at", sa.TIMESTAMP(True), server_default=sa.func.now()),  # null: nothing more is sent
    created_at(),
    sa.CheckConstraint("state IN ('delivered', 'disabled', 'failed', 'pending')", name="state"),
    sa.CheckConstraint("(state = 'pending') = (next_at IS NOT NULL)", name="pending_has_time"),
    sa.Index("ix_webhook_deliveries_tenant_list", "tenant_id", "id"),
    sa.Index(
        "ix_webhook_deliveries_due", "tenant_id", "next_at", postgresql_where=sa.text("next_at IS NOT NULL")
    ),
)

webhook_attempts = sa.Table(
    "webhook_attempts",
    metadata,
    sa.Column("delivery_id", sa.ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("status_code", sa.SmallInteger),  # null: there was no answer
    sa.Column("error", sa.Text),  # why not, or what was wrong with it
    sa.Column("duration_ms", sa.Integer, nullable=False),
    created_at(),
)

webhooks_disabled = sa.Table(
    "webhooks_disabled",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("url", sa.Text, nullable=False),  # answered 410: it wants no more
    created_at(),
    sa.UniqueConstraint("tenant_id", "url"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("body_digest", sa.LargeBinary, nullable=False),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), index=True),  # null: not a task's
    sa.Column("object_id", sa.Text),  # what was accepted
    sa.Column("status", sa.SmallInteger, nullable=False, server_default="202"),  # of the answer
    sa.Column("answer", sa.Text),  # JSON; null in rows of before it was kept
    created_at(),
    sa.Index("ix_idempotency_keys_created_at", "created_at"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("claimed_at", sa.TIMESTAMP(True), nullable=False),
    sa.Column("ended_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),
    sa.Column("outcome", sa.Text, nullable=False),  # the task's state after it
    sa.Column("failure", sa.Text),
    sa.Column("output_tokens", sa.Integer, nullable=False, server_default="0"),
    sa.Column("engine_us", sa.BigInteger, nullable=False, server_default="0"),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("engine", sa.Text, nullable=False),  # vllm, or deterministic: said wherever it is shown
    sa.Column("engine_version", sa.Text, nullable=False),
    sa.Column("length_classes", sa.Text, nullable=False),
    sa.Column("max_num_seqs", sa.Integer, nullable=False),
    sa.Column("reserved_slots", sa.Integer, nullable=False, server_default="0"),
    sa.Column("ceilings", sa.Text, nullable=False, server_default=""),  # such as long:4
    sa.Column("running", sa.Integer, nullable=False, server_default="0"),
    sa.Column("output_tokens_per_s", sa.Float, nullable=False, server_default="0"),  # lately
    sa.Column("state", sa.Text, nullable=False),  # starting, ready, draining, engine_down
    sa.Column("health", sa.Text, nullable=False, server_default=Health.HEALTHY.value),
    sa.Column("reasons", JSONB, nullable=False, server_default="{}"),  # sign → words, of what is wrong
    sa.Column("started_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),
    sa.Column("seen_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),
)

worker_events = sa.Table(
    "worker_events",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("worker", sa.Text, nullable=False),  # may be gone
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("health_before", sa.Text, nullable=False),
    sa.Column("health", sa.Text, nullable=False),
    sa.Column("reasons", JSONB, nullable=False, server_default="{}"),
    created_at(),
    sa.Index("ix_worker_events_created_at", "created_at"),
    sa.Index("ix_worker_events_worker_id", "worker", "id"),
)

leaders = sa.Table(
    "leaders",
    metadata,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("expires_at", sa.TIMESTAMP(True), nullable=False),
)

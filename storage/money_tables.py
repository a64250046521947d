"""Tables of prices, charges and engine time; part of the same schema as `storage.tables`.

Ledger entries and prices that were charged are never changed: triggers refuse it, whoever asks.

Units: `*_usd_micros` integer micro-USD (tariffs: per million tokens, the engine's per second); `*_us`
microseconds of engine time; `*_at`, `valid_*` timestamptz of the database clock.
"""

import sqlalchemy as sa

from core.lanes import Priority
from storage.tables import created_at, metadata

tariffs = sa.Table(
    "tariffs",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("model", sa.ForeignKey("models.name", ondelete="CASCADE"), nullable=False),
    sa.Column("version", sa.Text),  # of the model; null: every version that has no price of its own
    sa.Column("priority", sa.Text),  # null: every priority that has no price of its own
    sa.Column("valid_from", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),
    sa.Column("valid_until", sa.TIMESTAMP(True)),  # exclusive; null: until a later price begins
    sa.Column("prompt_usd_micros", sa.BigInteger, nullable=False),
    sa.Column("cached_usd_micros", sa.BigInteger, nullable=False),
    sa.Column("output_usd_micros", sa.BigInteger, nullable=False),
    sa.Column("engine_usd_micros", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("engine_us_per_token", sa.Integer, nullable=False, server_default="10000"),  # expected, to hold
    sa.UniqueConstraint(
        "model",
        "version",
        "priority",
        "valid_from",
        name="uq_tariffs_begin",
        postgresql_nulls_not_distinct=True,
    ),
    sa.CheckConstraint(
        "prompt_usd_micros >= 0 AND cached_usd_micros >= 0 AND output_usd_micros >= 0 AND engine_usd_micros >= 0",
        name="not_negative",
    ),
    sa.CheckConstraint("valid_until > valid_from", name="ends_after_begin"),
    sa.CheckConstraint(
        f"priority IN ({', '.join(repr(priority.value) for priority in sorted(Priority))})", name="priority"
    ),
)

ledger_entries = sa.Table(
    "ledger_entries",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False, server_default="task"),
    sa.Column("task_id", sa.Text, unique=True),  # the charge of a task, one each; outlives its retention
    sa.Column("corrects", sa.Text),  # a correction's task
    sa.Column("reason", sa.Text),  # of a correction
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("version", sa.Text),  # the task's
    sa.Column("priority", sa.Text, nullable=False),
    sa.Column("tariff_id", sa.BigInteger),  # null: the model had no price
    sa.Column("prompt_tokens", sa.Integer, nullable=False),
    sa.Column("cached_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("engine_us", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("cost_usd_micros", sa.BigInteger, nullable=False),
    created_at(),
    sa.CheckConstraint(
        "CASE kind WHEN 'task' THEN task_id IS NOT NULL AND corrects IS NULL"
        " WHEN 'correction' THEN task_id IS NULL AND corrects IS NOT NULL AND reason IS NOT NULL ELSE false END",
        name="kind",
    ),
    sa.CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens AND output_tokens >= 0", name="counts"),
    sa.CheckConstraint("kind = 'correction' OR (cost_usd_micros >= 0 AND engine_us >= 0)", name="cost"),
    sa.Index("ix_ledger_entries_tenant_time", "tenant_id", "created_at"),
    sa.Index("ix_ledger_entries_corrects", "corrects", postgresql_where=sa.text("corrects IS NOT NULL")),
)

engine_time = sa.Table(
    "engine_time",
    metadata,
    sa.Column("worker", sa.Text, primary_key=True),
    sa.Column("started_at", sa.TIMESTAMP(True), primary_key=True),  # of the worker's process
    sa.Column("day", sa.Date, primary_key=True),  # UTC
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("idle_us", sa.BigInteger, nullable=False),
    sa.Column("busy_us", sa.BigInteger, nullable=False),  # the sum over its attempts
    sa.Column("overhead_us", sa.BigInteger, nullable=False),  # starting, warming up, serving nobody
    sa.Column("written_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),
    sa.Column("ended", sa.Boolean, nullable=False, server_default=sa.false()),  # in order: nothing is missing
    sa.Index("ix_engine_time_day", "day"),
)

rate_limits = sa.Table(
    "rate_limits",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.ForeignKey("api_keys.id")),  # of one key; null: of the whole tenant
    sa.Column("model", sa.ForeignKey("models.name", ondelete="CASCADE")),  # of the tenant on one model
    sa.Column("requests_per_minute", sa.Integer),
    sa.Column("tokens_per_minute", sa.Integer),
    sa.Column("burst_requests", sa.Integer),  # null: a minute's worth
    sa.Column("burst_tokens", sa.Integer),
    created_at(),
    sa.UniqueConstraint(
        "tenant_id", "key_id", "model", name="uq_rate_limits_owner", postgresql_nulls_not_distinct=True
    ),
    sa.CheckConstraint("key_id IS NULL OR model IS NULL", name="one_owner"),
    sa.CheckConstraint(
        "requests_per_minute > 0 AND tokens_per_minute > 0 AND burst_requests > 0 AND burst_tokens > 0",
        name="positive",
    ),
)

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.ForeignKey("api_keys.id")),  # of one key; null: of the whole tenant
    sa.Column("period", sa.Text, nullable=False),  # month (UTC, by acceptance) or total
    sa.Column("soft_usd_micros", sa.BigInteger),  # above it callers and webhooks are told
    sa.Column("hard_usd_micros", sa.BigInteger),  # from it on nothing is accepted
    sa.Column("webhook", sa.Text),  # the URL that is told when a period passes the soft threshold
    created_at(),
    sa.UniqueConstraint(
        "tenant_id", "key_id", "period", name="uq_budgets_owner", postgresql_nulls_not_distinct=True
    ),
    sa.CheckConstraint("period IN ('month', 'total')", name="period"),
    sa.CheckConstraint("soft_usd_micros >= 0 AND hard_usd_micros >= 0", name="not_negative"),
)

budget_periods = sa.Table(
    "budget_periods",
    metadata,
    sa.Column("budget_id", sa.ForeignKey("budgets.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("period_start", sa.Date, primary_key=True),  # the month's first day; 1970-01-01 of a total
    sa.Column("spent_usd_micros", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("held_usd_micros", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("soft_noted_at", sa.TIMESTAMP(True)),  # when its soft threshold was told of
    sa.CheckConstraint("held_usd_micros >= 0", name="holds"),
    # every accepted and every ended task of the owner updates the row
    postgresql_with={"fillfactor": "50"},
)

holds = sa.Table(
    "holds",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("budget_id", sa.Text, primary_key=True),
    sa.Column("period_start", sa.Date, nullable=False),
    sa.Column("usd_micros", sa.BigInteger, nullable=False),  # the most that the task can cost
    sa.ForeignKeyConstraint(
        ["budget_id", "period_start"],
        ["budget_periods.budget_id", "budget_periods.period_start"],
        name="fk_holds_period",
        ondelete="CASCADE",
    ),
    sa.Index("ix_holds_budget_id", "budget_id", "period_start"),
    sa.CheckConstraint("usd_micros >= 0", name="not_negative"),
)

"""tenants, keys, models, tasks, ledger."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leaders",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_leaders")),
    )
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("max_model_len", sa.Integer(), nullable=False),
        sa.Column("default_max_tokens", sa.Integer(), nullable=True),
        sa.Column("short_tokens", sa.Integer(), nullable=False),
        sa.Column("medium_tokens", sa.Integer(), nullable=False),
        sa.Column("owned_by", sa.Text(), server_default="headrace", nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "0 < short_tokens AND short_tokens < medium_tokens", name=op.f("ck_models_bounds_rise")
        ),
        sa.CheckConstraint("max_model_len > 0", name=op.f("ck_models_has_context")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("engine_version", sa.Text(), nullable=False),
        sa.Column("length_classes", sa.Text(), nullable=False),
        sa.Column("max_num_seqs", sa.Integer(), nullable=False),
        sa.Column("running", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lookup", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("lookup", name=op.f("uq_api_keys_lookup")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "grants",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_grants_model"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_grants_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "model", name=op.f("pk_grants")),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd_micros", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "cached_tokens BETWEEN 0 AND prompt_tokens AND output_tokens >= 0",
            name=op.f("ck_ledger_entries_counts"),
        ),
        sa.CheckConstraint("cost_usd_micros >= 0", name=op.f("ck_ledger_entries_cost")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_ledger_entries_tenant_id")),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_ledger_entries")),
    )
    op.create_index(
        "ix_ledger_entries_tenant_time", "ledger_entries", ["tenant_id", "created_at"], unique=False
    )
    op.create_table(
        "tariffs",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("valid_from", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("prompt_usd_micros", sa.BigInteger(), nullable=False),
        sa.Column("cached_usd_micros", sa.BigInteger(), nullable=False),
        sa.Column("output_usd_micros", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "prompt_usd_micros >= 0 AND cached_usd_micros >= 0 AND output_usd_micros >= 0",
            name=op.f("ck_tariffs_not_negative"),
        ),
        sa.ForeignKeyConstraint(
            ["model"], ["models.name"], name=op.f("fk_tariffs_model"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("model", "valid_from", name=op.f("pk_tariffs")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("length_class", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("exposed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("max_output_tokens", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deadline_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("published_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("claimed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("lease_expires_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("usage_prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("usage_cached_tokens", sa.Integer(), nullable=True),
        sa.Column("usage_output_tokens", sa.Integer(), nullable=True),
        sa.Column("purged_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("ttft_ms", sa.Integer(), nullable=True),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.CheckConstraint(
            "(state IN ('cancelled', 'completed', 'expired', 'failed', 'incomplete')) = (finished_at IS NOT NULL)",
            name=op.f("ck_tasks_final_has_end"),
        ),
        sa.CheckConstraint(
            "(state IN ('cancelling', 'in_progress')) = (lease_expires_at IS NOT NULL)",
            name=op.f("ck_tasks_running_has_lease"),
        ),
        sa.CheckConstraint(
            "failure IS NULL OR failure IN ('deadline', 'engine_dead', 'engine_error', 'forbidden', 'internal', 'not_started_in_time', 'request_rejected', 'terminated', 'worker_drained', 'worker_lost')",
            name=op.f("ck_tasks_failure"),
        ),
        sa.CheckConstraint("length_class IN ('long', 'medium', 'short')", name=op.f("ck_tasks_length_class")),
        sa.CheckConstraint(
            "priority IN ('batch', 'interactive', 'standard')", name=op.f("ck_tasks_priority")
        ),
        sa.CheckConstraint(
            "state <> 'completed' OR usage_output_tokens IS NOT NULL",
            name=op.f("ck_tasks_completed_has_usage"),
        ),
        sa.CheckConstraint(
            "state IN ('cancelled', 'cancelling', 'completed', 'expired', 'failed', 'in_progress', 'incomplete', 'queued')",
            name=op.f("ck_tasks_state"),
        ),
        sa.CheckConstraint(
            "attempt >= 0 AND failures >= 0 AND failures <= attempt", name=op.f("ck_tasks_attempt")
        ),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_tasks_key_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_tasks_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "ix_tasks_queued",
        "tasks",
        ["model", "length_class", "priority", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "ix_tasks_running",
        "tasks",
        ["id"],
        unique=False,
        postgresql_where=sa.text("state IN ('cancelling', 'in_progress')"),
    )
    op.create_index("ix_tasks_tenant_list", "tasks", ["tenant_id", "id"], unique=False)
    op.create_index(
        "ix_tasks_unpublished",
        "tasks",
        ["id"],
        unique=False,
        postgresql_where=sa.text("state = 'queued' AND published_at IS NULL"),
    )
    op.create_index(
        "ix_tasks_unpurged",
        "tasks",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("purged_at IS NULL AND finished_at IS NOT NULL"),
    )
    op.create_table(
        "attempts",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_attempts_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_idempotency_keys_task_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_task_id"), "idempotency_keys", ["task_id"], unique=False)
    op.create_table(
        "task_payloads",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("response", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_task_payloads_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_task_payloads")),
    )

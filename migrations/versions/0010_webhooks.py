"""webhooks: secrets, deliveries, their tries, and URLs that want no more."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _created_at() -> sa.Column[object]:
    return sa.Column("created_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.text("now()"))


def upgrade() -> None:
    op.add_column("tasks", sa.Column("webhook", sa.Text()))
    op.add_column("tasks", sa.Column("webhook_at", sa.TIMESTAMP(True)))
    op.create_index(
        "ix_tasks_webhook",
        "tasks",
        ["finished_at"],
        postgresql_where=sa.text("webhook IS NOT NULL AND webhook_at IS NULL AND finished_at IS NOT NULL"),
    )
    op.create_table(
        "webhook_secrets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        _created_at(),
        sa.Column("expires_at", sa.TIMESTAMP(True)),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_secrets_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_secrets")),
    )
    op.create_index(op.f("ix_webhook_secrets_tenant_id"), "webhook_secrets", ["tenant_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_at", sa.TIMESTAMP(True), server_default=sa.text("now()")),
        _created_at(),
        sa.CheckConstraint(
            "state IN ('delivered', 'disabled', 'failed', 'pending')",
            name=op.f("ck_webhook_deliveries_state"),
        ),
        sa.CheckConstraint(
            "(state = 'pending') = (next_at IS NOT NULL)",
            name=op.f("ck_webhook_deliveries_pending_has_time"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_deliveries_tenant_id")),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_webhook_deliveries_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("task_id", name=op.f("uq_webhook_deliveries_task_id")),
    )
    op.create_index("ix_webhook_deliveries_tenant_list", "webhook_deliveries", ["tenant_id", "id"])
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["tenant_id", "next_at"],
        postgresql_where=sa.text("next_at IS NOT NULL"),
    )
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.SmallInteger()),
        sa.Column("error", sa.Text()),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            name=op.f("fk_webhook_attempts_delivery_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", "attempt", name=op.f("pk_webhook_attempts")),
    )
    op.create_table(
        "webhooks_disabled",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhooks_disabled_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks_disabled")),
        sa.UniqueConstraint("tenant_id", "url", name=op.f("uq_webhooks_disabled_tenant_id_url")),
    )

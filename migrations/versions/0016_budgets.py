"""budgets, what is spent and held of them, and the holds of open tasks."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "tariffs", sa.Column("engine_us_per_token", sa.Integer(), server_default="10000", nullable=False)
    )
    op.alter_column("webhook_deliveries", "task_id", nullable=True)
    op.create_table(
        "budgets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("soft_usd_micros", sa.BigInteger(), nullable=True),
        sa.Column("hard_usd_micros", sa.BigInteger(), nullable=True),
        sa.Column("webhook", sa.Text(), nullable=True),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_budgets_tenant_id")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_budgets_key_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sa.UniqueConstraint(
            "tenant_id", "key_id", "period", name="uq_budgets_owner", postgresql_nulls_not_distinct=True
        ),
        sa.CheckConstraint("period IN ('month', 'total')", name=op.f("ck_budgets_period")),
        sa.CheckConstraint(
            "soft_usd_micros >= 0 AND hard_usd_micros >= 0", name=op.f("ck_budgets_not_negative")
        ),
    )
    op.create_table(
        "budget_periods",
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("period_start", sa.Date(), nullable=False),
        sa.Column("spent_usd_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("held_usd_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("soft_noted_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budgets.id"], name=op.f("fk_budget_periods_budget_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("budget_id", "period_start", name=op.f("pk_budget_periods")),
        sa.CheckConstraint("held_usd_micros >= 0", name=op.f("ck_budget_periods_holds")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "holds",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("budget_id", sa.Text(), nullable=False),
        sa.Column("period_start", sa.Date(), nullable=False),
        sa.Column("usd_micros", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_holds_task_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["budget_id", "period_start"],
            ["budget_periods.budget_id", "budget_periods.period_start"],
            name="fk_holds_period",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("task_id", "budget_id", name=op.f("pk_holds")),
        sa.CheckConstraint("usd_micros >= 0", name=op.f("ck_holds_not_negative")),
    )
    op.create_index("ix_holds_budget_id", "holds", ["budget_id", "period_start"], unique=False)

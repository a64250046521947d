"""rate limits of keys, tenants and tenants' models; what a task reserved of them."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("reserved_tokens", sa.Integer(), nullable=True))
    op.create_table(
        "rate_limits",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("burst_requests", sa.Integer(), nullable=True),
        sa.Column("burst_tokens", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_rate_limits_tenant_id")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_rate_limits_key_id")),
        sa.ForeignKeyConstraint(
            ["model"], ["models.name"], name=op.f("fk_rate_limits_model"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate_limits")),
        sa.UniqueConstraint(
            "tenant_id", "key_id", "model", name="uq_rate_limits_owner", postgresql_nulls_not_distinct=True
        ),
        sa.CheckConstraint("key_id IS NULL OR model IS NULL", name=op.f("ck_rate_limits_one_owner")),
        sa.CheckConstraint(
            "requests_per_minute > 0 AND tokens_per_minute > 0 AND burst_requests > 0 AND burst_tokens > 0",
            name=op.f("ck_rate_limits_positive"),
        ),
    )

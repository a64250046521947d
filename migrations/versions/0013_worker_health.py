"""health of workers, probes of models."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = postgresql.JSONB(astext_type=sa.Text())
    op.add_column("models", sa.Column("probe_prompt", sa.Text(), nullable=True))
    op.add_column(
        "models", sa.Column("probe_words", sa.ARRAY(sa.Text()), server_default="{}", nullable=False)
    )
    op.add_column("workers", sa.Column("health", sa.Text(), server_default="healthy", nullable=False))
    op.add_column("workers", sa.Column("reasons", json, server_default="{}", nullable=False))
    op.create_table(
        "worker_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("health_before", sa.Text(), nullable=False),
        sa.Column("health", sa.Text(), nullable=False),
        sa.Column("reasons", json, server_default="{}", nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_events")),
    )
    op.create_index("ix_worker_events_created_at", "worker_events", ["created_at"])
    op.create_index("ix_worker_events_worker_id", "worker_events", ["worker", "id"])

"""batches."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
        sa.Column("output_ttl_s", sa.Float(), nullable=False),
        sa.Column("state", sa.Text(), server_default="validating", nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("failed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("in_progress_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finalizing_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("completed_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("expired_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("cancelling_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("cancelled_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("errors", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cursor_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cursor_line", sa.Integer(), server_default="0", nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("total", sa.Integer(), server_default="0", nullable=False),
        sa.Column("parts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("completed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("unfinished", sa.Integer(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_usd_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("error_file_id", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('cancelled', 'cancelling', 'completed', 'expired', 'failed', 'finalizing', 'in_progress', 'validating')",
            name=op.f("ck_batches_state"),
        ),
        sa.CheckConstraint(
            "completed + failed <= total AND unfinished <= failed", name=op.f("ck_batches_counts")
        ),
        sa.CheckConstraint("cursor_bytes BETWEEN 0 AND input_bytes", name=op.f("ck_batches_cursor")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_batches_key_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_batches_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index(
        "ix_batches_open",
        "batches",
        ["input_file_id"],
        unique=False,
        postgresql_where=sa.text("state IN ('cancelling', 'finalizing', 'in_progress', 'validating')"),
    )
    op.create_index("ix_batches_tenant_list", "batches", ["tenant_id", "id"], unique=False)
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("part", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('cancelled', 'completed', 'expired', 'failed')",
            name=op.f("ck_batch_items_outcome"),
        ),
        sa.CheckConstraint("(part IS NULL) = (outcome IS NULL)", name=op.f("ck_batch_items_written")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_items_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_batch_items")),
        sa.UniqueConstraint("task_id", name=op.f("uq_batch_items_task_id")),
    )
    op.create_index(
        "ix_batch_items_unwritten",
        "batch_items",
        ["batch_id"],
        unique=False,
        postgresql_where=sa.text("part IS NULL"),
    )
    op.create_table(
        "batch_parts",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("output_key", sa.Text(), nullable=True),
        sa.Column("error_key", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_parts_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "number", name=op.f("pk_batch_parts")),
    )

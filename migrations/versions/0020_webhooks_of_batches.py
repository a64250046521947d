"""A batch may have a webhook, and a delivery may tell of a batch."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("webhook", sa.Text()))
    op.add_column("batches", sa.Column("webhook_at", sa.TIMESTAMP(True)))
    op.create_index(
        "ix_batches_webhook",
        "batches",
        ["id"],
        postgresql_where=sa.text(
            "webhook IS NOT NULL AND webhook_at IS NULL"
            " AND state IN ('cancelled', 'completed', 'expired', 'failed')"
        ),
    )
    op.add_column("webhook_deliveries", sa.Column("batch_id", sa.Text()))
    op.create_foreign_key(
        op.f("fk_webhook_deliveries_batch_id"),
        "webhook_deliveries",
        "batches",
        ["batch_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_unique_constraint(op.f("uq_webhook_deliveries_batch_id"), "webhook_deliveries", ["batch_id"])

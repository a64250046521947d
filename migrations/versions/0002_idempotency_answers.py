"""idempotency keys keep what was answered, of anything that is accepted."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("idempotency_keys", "task_id", nullable=True)
    op.add_column("idempotency_keys", sa.Column("object_id", sa.Text()))
    op.add_column(
        "idempotency_keys", sa.Column("status", sa.SmallInteger(), server_default="202", nullable=False)
    )
    op.add_column("idempotency_keys", sa.Column("answer", sa.Text()))
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])

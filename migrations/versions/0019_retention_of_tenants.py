"""retention of tenants, tasks whose bodies are not stored, and what stays of purged bodies."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("store", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.add_column("tasks", sa.Column("delivered_at", sa.TIMESTAMP(timezone=True), nullable=True))
    op.create_index(
        "ix_tasks_purgeable",
        "tasks",
        ["tenant_id", "finished_at"],
        unique=False,
        postgresql_where=sa.text("purged_at IS NULL AND finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_tasks_unkept",
        "tasks",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("NOT store AND purged_at IS NULL AND finished_at IS NOT NULL"),
    )
    op.drop_index("ix_tasks_unpurged", table_name="tasks")
    op.create_table(
        "purged_bodies",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("request_bytes", sa.Integer(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("response_bytes", sa.Integer(), nullable=True),
        sa.Column("response_hash", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_purged_bodies_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_purged_bodies")),
    )

"""indexes of open tasks by tenant and model, and of failed ones."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_tasks_open",
        "tasks",
        ["tenant_id", "model"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_index(
        "ix_tasks_failed", "tasks", ["id"], unique=False, postgresql_where=sa.text("state = 'failed'")
    )

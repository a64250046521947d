"""traceparent of tasks, class of tenants."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("traceparent", sa.Text(), nullable=True))
    op.add_column("tenants", sa.Column("class", sa.Text(), server_default="default", nullable=False))

"""a model's version: in its registration, in the tasks accepted under it, and in what they were charged."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("models", "tasks", "ledger_entries"):
        op.add_column(table, sa.Column("version", sa.Text(), nullable=True))

"""models say how their tool calls and their reasoning are read."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("models", sa.Column("tool_parser", sa.Text(), nullable=True))
    op.add_column("models", sa.Column("reasoning_parser", sa.Text(), nullable=True))

"""tasks count how often they lent their slot to interactive work."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tasks", sa.Column("preemptions", sa.Integer(), server_default="0", nullable=False))

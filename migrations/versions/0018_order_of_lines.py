"""A batch's lines may be run as they stand in the file."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "batches", sa.Column("in_file_order", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )

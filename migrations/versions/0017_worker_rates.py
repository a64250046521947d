"""workers say how many tokens they make."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("output_tokens_per_s", sa.Float(), server_default="0", nullable=False))

"""a bound on how many tasks a tenant runs at once."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("max_running_tasks", sa.Integer(), nullable=True))
    op.add_column("tasks", sa.Column("turned_back", sa.Integer(), server_default="0", nullable=False))
    op.create_check_constraint(op.f("ck_tenants_max_running_tasks"), "tenants", "max_running_tasks > 0")

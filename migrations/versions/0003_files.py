"""files."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), server_default="writing", nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('deleted', 'ready', 'writing')", name=op.f("ck_files_state")),
        sa.CheckConstraint(
            "purpose IN ('assistants', 'batch', 'batch_output', 'evals', 'fine-tune', 'user_data', 'vision')",
            name=op.f("ck_files_purpose"),
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_files_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index(
        "ix_files_tenant_list", "files", ["tenant_id", "id"], postgresql_where=sa.text("state = 'ready'")
    )
    op.create_index("ix_files_removable", "files", ["id"], postgresql_where=sa.text("state <> 'ready'"))
    op.create_index("ix_files_expiring", "files", ["expires_at"], postgresql_where=sa.text("state = 'ready'"))

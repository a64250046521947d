"""Tables of files and batches, as `migrations` creates them; see `storage.tables` for the rest and for units."""

import sqlalchemy as sa

from core.files import FileState, Purpose
from storage.tables import created_at, metadata, one_of

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # sorts by time; names the bytes in the blob store too
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("state", sa.Text, nullable=False, server_default=FileState.WRITING.value),
    created_at(),
    sa.Column("expires_at", sa.TIMESTAMP(True)),
    sa.CheckConstraint(one_of("state", FileState), name="state"),
    sa.CheckConstraint(one_of("purpose", Purpose), name="purpose"),
    sa.Index("ix_files_tenant_list", "tenant_id", "id", postgresql_where=sa.text("state = 'ready'")),
    sa.Index("ix_files_removable", "id", postgresql_where=sa.text("state <> 'ready'")),
    sa.Index("ix_files_expiring", "expires_at", postgresql_where=sa.text("state = 'ready'")),
)

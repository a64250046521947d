"""Rows of files. Their bytes are `storage.blobs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.files import FileState, Purpose
from storage.batch_tables import files


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file about to be written."""

    id: str
    tenant_id: str
    purpose: Purpose
    filename: str
    expires_after_s: float | None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as its owner may see it."""

    id: str
    purpose: Purpose
    filename: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None


_INSERT = sa.text("""
INSERT INTO files (id, tenant_id, purpose, filename, expires_at)
VALUES (:id, :tenant_id, :purpose, :filename, now() + make_interval(secs => CAST(:expires_after_s AS float8)))
""")

_FINISH = sa.text("""
UPDATE files SET state = 'ready', bytes = :bytes, purpose = coalesce(:purpose, purpose),
  expires_at = CASE WHEN CAST(:expires_after_s AS float8) IS NULL THEN expires_at
                    ELSE created_at + make_interval(secs => CAST(:expires_after_s AS float8)) END
WHERE id = :id AND state = 'writing' RETURNING id, purpose, filename, bytes, created_at, expires_at
""")

# whose expiry has passed exists no more, though the remover has not come by yet
_EXISTS = (files.c.state == FileState.READY.value) & sa.or_(
    files.c.expires_at.is_(None), files.c.expires_at > sa.func.now()
)


async def insert_file(connection: AsyncConnection, new: NewFile) -> None:
    """Insert the row of a file whose bytes come next."""
    await connection.execute(
        _INSERT,
        {
            "id": new.id,
            "tenant_id": new.tenant_id,
            "purpose": new.purpose,
            "filename": new.filename,
            "expires_after_s": new.expires_after_s,
        },
    )


async def finish_file(
    connection: AsyncConnection,
    file_id: str,
    *,
    size_bytes: int,
    purpose: Purpose | None = None,
    expires_after_s: float | None = None,
) -> StoredFile | None:
    """Make a written file exist; None when it was given up meanwhile. What is None stays as inserted."""
    values = {"id": file_id, "bytes": size_bytes, "purpose": purpose, "expires_after_s": expires_after_s}
    row = (await connection.execute(_FINISH, values)).one_or_none()
    return _stored(row) if row else None


async def delete_file(connection: AsyncConnection, file_id: str, tenant_id: str | None = None) -> bool:
    """Mark a file as deleted, whole or not; False when a tenant has no such file."""
    query = files.update().where(files.c.id == file_id).values(state=FileState.DELETED.value)
    if tenant_id is not None:
        query = query.where(files.c.tenant_id == tenant_id, _EXISTS)
    return (await connection.execute(query)).rowcount > 0


async def get_file(connection: AsyncConnection, tenant_id: str, file_id: str) -> StoredFile | None:
    """Read one file of a tenant; another tenant's id is as unknown as a made-up one."""
    query = sa.select(files).where(files.c.id == file_id, files.c.tenant_id == tenant_id, _EXISTS)
    row = (await connection.execute(query)).one_or_none()
    return _stored(row) if row else None


async def list_files(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    limit: int,
    newest_first: bool,
    after: str | None,
    purpose: str | None,
) -> list[StoredFile]:
    """List a tenant's files by id, which is by time; `after` is exclusive."""
    query = sa.select(files).where(files.c.tenant_id == tenant_id, _EXISTS)
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    if after is not None:
        query = query.where(files.c.id < after if newest_first else files.c.id > after)
    query = query.order_by(files.c.id.desc() if newest_first else files.c.id).limit(limit)
    return [_stored(row) for row in await connection.execute(query)]


_CONDEMN = sa.text("""
UPDATE files SET state = 'deleted' WHERE id IN (
  SELECT id FROM files f WHERE (state = 'ready' AND expires_at <= now())
     OR (state = 'ready' AND created_at < (
           SELECT now() - make_interval(secs => n.retention_s) FROM tenants n WHERE n.id = f.tenant_id))
     OR (state = 'writing' AND created_at < now() - make_interval(secs => :unfinished_s))
  LIMIT :limit FOR UPDATE SKIP LOCKED)
""")

# the bytes of a batch's input stay until the batch has read them, whatever became of the file
_REMOVABLE = sa.text("""
SELECT id FROM files f WHERE state = 'deleted' AND NOT EXISTS (
  SELECT 1 FROM batches b WHERE b.input_file_id = f.id
    AND b.state IN ('validating', 'in_progress', 'finalizing', 'cancelling'))
ORDER BY id LIMIT :limit
""")


async def condemn_files(connection: AsyncConnection, *, unfinished_s: float, limit: int) -> None:
    """Mark as deleted what expired, is past its tenant's retention, or was begun and never finished."""
    await connection.execute(_CONDEMN, {"unfinished_s": unfinished_s, "limit": limit})


async def find_removable(connection: AsyncConnection, *, limit: int) -> list[str]:
    """List deleted files whose bytes may still be there and are in nobody's use."""
    return [row.id for row in await connection.execute(_REMOVABLE, {"limit": limit})]


async def forget_files(connection: AsyncConnection, file_ids: Sequence[str]) -> None:
    """Delete the rows of files whose bytes are gone."""
    await connection.execute(
        files.delete().where(
            files.c.id == sa.func.any(sa.cast(list(file_ids), sa.ARRAY(sa.Text))),
            files.c.state == FileState.DELETED.value,
        )
    )


def _stored(row: sa.Row[tuple[object, ...]]) -> StoredFile:
    return StoredFile(row.id, Purpose(row.purpose), row.filename, row.bytes, row.created_at, row.expires_at)

"""Read who changed what."""

from sqlalchemy.ext.asyncio import AsyncEngine

from services.manage_tenants import require_tenant
from storage import audit
from storage.audit import AuditEntry
from storage.autocommit import autocommit
from storage.paging import Page


async def list_audit(
    database: AsyncEngine, page: Page, *, tenant: str | None, object_id: str | None
) -> tuple[list[AuditEntry], bool]:
    """List audit entries and whether there are more. Raises: MissingError for an unknown tenant."""
    async with autocommit(database) as connection:
        tenant_id = (await require_tenant(connection, tenant)).id if tenant is not None else None
        return await audit.list_entries(connection, page, tenant_id=tenant_id, object_id=object_id)

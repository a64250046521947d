"""/v1/admin/audit: who changed what, newest first. Entries can't be changed, by anybody."""

from typing import Any

from fastapi import Request

from api.admin.edge import Paged, admin_router, page_object
from api.state import state_of
from core.times import seconds_of
from services.read_audit import list_audit
from storage.audit import AuditEntry

router = admin_router()


def _object(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "object": "audit_entry",
        "created_at": seconds_of(entry.created_at),
        "actor": entry.actor,
        "actor_key_id": entry.actor_key_id,
        "request_id": entry.request_id,
        "action": entry.action,
        "object_id": entry.object_id,
        "tenant_id": entry.tenant_id,
        "before": entry.before,
        "after": entry.after,
    }


@router.get("/audit")
async def list_(
    request: Request, page: Paged, tenant: str | None = None, object_id: str | None = None
) -> dict[str, Any]:
    """List changes, of one tenant or object or of everything."""
    database = state_of(request).database
    found, has_more = await list_audit(database, page, tenant=tenant, object_id=object_id)
    return page_object([_object(entry) for entry in found], has_more)

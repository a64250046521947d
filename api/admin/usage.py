"""/v1/admin/usage and /v1/admin/engine-time: all tenants' usage, and where the engines' time went."""

from datetime import date
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from api.admin.edge import admin_router
from api.state import state_of
from api.usage import Format, answer, wants_csv
from core.usage import Group
from schemas.usage import read_days, read_groups
from services.read_usage import read_any_usage, read_chargeback
from storage.usage import Days

router = admin_router()


@router.get("/usage")
async def read(
    request: Request,
    start: date | None = None,
    end: date | None = None,
    group_by: str = "tenant,model",
    tenant: str | None = None,
    format: Format = None,
) -> Response:
    """Sum the usage of one tenant or of all."""
    groups = read_groups(group_by, frozenset(Group))
    days = read_days(start, end)
    report = await read_any_usage(state_of(request).database, Days(*days), groups, tenant)
    return answer(report, groups, days, as_csv=wants_csv(request, format))


@router.get("/engine-time")
async def engine_time(request: Request, start: date | None = None, end: date | None = None) -> dict[str, Any]:
    """Share the engines' time among tenants; what nobody had is idle or overhead. Parts add up to wall_us."""
    days = read_days(start, end)
    found = await read_chargeback(state_of(request).database, Days(*days))
    return {
        "object": "engine_time",
        "start": days[0].isoformat(),
        "end": days[1].isoformat(),
        "wall_us": found.engines.wall_us,
        "idle_us": found.engines.idle_us,
        "overhead_us": found.engines.overhead_us,
        "free_us": found.engines.free_us,
        "open_us": found.open_us,
        "tenants": [
            {
                "tenant_id": row.of[Group.TENANT],
                "engine_us": row.engine_us,
                "cost_usd_micros": row.cost_usd_micros,
            }
            for row in found.tenants
        ],
    }

"""/v1/usage: what the caller's tenant used, and what it cost."""

from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.auth import Caller
from api.json import JsonResponse
from api.state import state_of
from core.usage import Group
from schemas.usage import read_days, read_groups, usage_csv, usage_object
from services.read_usage import UsageReport, read_usage
from storage.usage import Days

router = APIRouter(tags=["usage"])
OWN = frozenset(Group) - {Group.TENANT}
Format = Annotated[Literal["json", "csv"] | None, Query()]


def wants_csv(request: Request, format: str | None) -> bool:
    """Say which form is asked for: by the parameter, else by Accept."""
    if format is not None:
        return format == "csv"
    accepted = request.headers.get("accept", "")
    return "text/csv" in accepted and "application/json" not in accepted


def answer(
    report: UsageReport, groups: tuple[Group, ...], days: tuple[date, date], *, as_csv: bool
) -> Response:
    """Build the answer in the form that is asked for."""
    if as_csv:
        headers = {"X-Has-More": "true"} if report.cut else {}
        return Response(usage_csv(report.rows, groups), media_type="text/csv", headers=headers)
    return JsonResponse(usage_object(report.rows, report.total, groups, days, cut=report.cut))


@router.get("/v1/usage")
async def read(
    request: Request,
    access: Caller,
    start: date | None = None,
    end: date | None = None,
    group_by: str = "day,model",
    format: Format = None,
) -> Response:
    """Sum the tenant's usage from one day (UTC) to before another; this month when none is said."""
    groups = read_groups(group_by, OWN)
    days = read_days(start, end)
    report = await read_usage(state_of(request).database, Days(*days), groups, access.caller.tenant_id)
    return answer(report, groups, days, as_csv=wants_csv(request, format))

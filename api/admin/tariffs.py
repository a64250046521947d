"""/v1/admin/tariffs and /v1/admin/ledger/corrections: prices, and what was charged wrongly."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import Request

from api.admin.edge import Administrator, Paged, admin_router, page_object, read_body
from api.body import takes
from api.state import state_of
from core.times import seconds_of
from schemas.money import CorrectionCreate, TariffCreate
from services.manage_tariffs import add_tariff, correct, end_tariff, list_tariffs
from storage.tariffs import StoredTariff

router = admin_router()


def _object(tariff: StoredTariff) -> dict[str, Any]:
    return {
        **asdict(tariff),
        "object": "tariff",
        "valid_from": seconds_of(tariff.valid_from),
        "valid_until": seconds_of(tariff.valid_until),
    }


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


@router.get("/tariffs")
async def list_(
    request: Request, page: Paged, model: str | None = None, in_force: bool = False
) -> dict[str, Any]:
    """List prices, of one model or of all; past and future ones too, unless only those in force are asked for."""
    found, has_more = await list_tariffs(state_of(request).database, page, model=model, in_force=in_force)
    return page_object([_object(tariff) for tariff in found], has_more)


@router.post("/tariffs", status_code=201, openapi_extra=takes(TariffCreate))
async def create(request: Request, actor: Administrator) -> dict[str, Any]:
    """Set a price. It holds for tasks accepted from `valid_from` on; prices are never changed."""
    asked = await read_body(request, TariffCreate)
    added = await add_tariff(
        state_of(request).database,
        actor,
        asked.model,
        {"version": asked.version, "priority": asked.priority, **asked.charged},
        valid_from=_moment(asked.valid_from),
        valid_until=_moment(asked.valid_until),
    )
    return _object(added)


@router.post("/tariffs/{tariff_id}/end")
async def end(request: Request, actor: Administrator, tariff_id: str) -> dict[str, Any]:
    """End a price now: for tasks accepted from now on the one before it holds again."""
    return _object(await end_tariff(state_of(request).database, actor, tariff_id))


@router.post("/ledger/corrections", status_code=201, openapi_extra=takes(CorrectionCreate))
async def create_correction(request: Request, actor: Administrator) -> dict[str, Any]:
    """Add to, or take from, what a task was charged, by an entry beside its own."""
    asked = await read_body(request, CorrectionCreate)
    made = await correct(
        state_of(request).database, actor, asked.task_id, asked.cost_usd_micros, asked.reason
    )
    return {**asdict(made), "object": "ledger_correction", "created_at": seconds_of(made.created_at)}

"""Usage on the wire: an object, or CSV with a line a row."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from core.usage import Group, parse_groups
from schemas.errors import RequestError

_SUMS = (
    *("tasks", "prompt_tokens", "cached_tokens", "output_tokens", "engine_us"),
    *("corrections_usd_micros", "cost_usd_micros"),
)
_MOST_DAYS = 3660


def read_groups(text: str, allowed: frozenset[Group]) -> tuple[Group, ...]:
    """Read the parameter group_by. Raises: RequestError."""
    try:
        return parse_groups(text, allowed)
    except ValueError as error:
        raise RequestError(400, f"Invalid group_by: {error}.", "invalid_value", "group_by") from error


def read_days(start: date | None, end: date | None) -> tuple[date, date]:
    """Fill in what is missing: from the first of this month to today, which is in it. Raises: RequestError."""
    today = datetime.now(UTC).date()
    until = end or today + timedelta(days=1)
    since = start or min(today, until - timedelta(days=1)).replace(day=1)
    if not since < until:
        raise RequestError(400, "Invalid end: it must be after start.", "invalid_value", "end")
    if (until - since).days > _MOST_DAYS:
        raise RequestError(400, f"Invalid start: at most {_MOST_DAYS} days.", "invalid_value", "start")
    return since, until


def usage_row(row: Any) -> dict[str, Any]:
    """Build a row's wire form; `row` is a `storage.usage.UsageRow`."""
    names = {
        group: f"{group}_id" if group in (Group.KEY, Group.BATCH, Group.TENANT) else group for group in row.of
    }
    return {str(names[group]): value for group, value in row.of.items()} | {
        name: getattr(row, name) for name in _SUMS
    }


def usage_object(
    rows: Sequence[Any], total: Any, groups: Sequence[Group], days: tuple[date, date], *, cut: bool
) -> dict[str, Any]:
    """Build the whole answer."""
    return {
        "object": "usage",
        "start": days[0].isoformat(),
        "end": days[1].isoformat(),
        "group_by": list(groups),
        "data": [usage_row(row) for row in rows],
        "total": usage_row(total),
        "has_more": cut,
    }


def usage_csv(rows: Sequence[Any], groups: Sequence[Group]) -> str:
    """Write rows as CSV (RFC 4180), with a header."""
    names = [f"{one}_id" if one in (Group.KEY, Group.BATCH, Group.TENANT) else str(one) for one in groups]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*names, *_SUMS])
    writer.writeheader()
    writer.writerows(usage_row(row) for row in rows)
    return out.getvalue()

"""`headrace reconcile`: the books against tasks, prices, holds and engines' time, over the database."""

import asyncio
import sys

from core.money import usd
from runtime.resources import open_database
from runtime.settings import settings
from services.reconcile import Reconciliation, reconcile_all, repair_budgets

_SHOWN = 50


def run(*, repair: bool) -> int:
    """Print sums and differences; return the exit code, 1 where there are any."""
    found = asyncio.run(_reconcile(repair=repair))
    print(
        f"{found.tasks} tasks, {found.charged} charged: {usd(found.ledger_usd_micros)} USD by the ledger,"
        f" {usd(found.tasks_usd_micros)} USD by tasks and prices; {found.workers} worker processes"
    )
    for difference in found.differences[:_SHOWN]:
        print(f"difference: {difference}", file=sys.stderr)
    if len(found.differences) > _SHOWN:
        print(f"and {len(found.differences) - _SHOWN} more", file=sys.stderr)
    return 1 if found.differences else 0


async def _reconcile(*, repair: bool) -> Reconciliation:
    database = open_database(settings(), name="cli")
    try:
        if repair:
            print(f"{await repair_budgets(database)} holds and budgets put right")
        return await reconcile_all(database)
    finally:
        await database.dispose()

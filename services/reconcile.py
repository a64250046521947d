"""Hold the books against what they are made of: tasks, prices, holds and engines' time."""

from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncEngine

from core.reconcile import charge_of, engine_time_fault
from storage import budgets, reconcile
from storage.reconcile import Booked

_MOST_ORPHANS = 100


@dataclass(slots=True)
class Reconciliation:
    """What was looked at, what it sums to, and every difference."""

    tasks: int = 0
    charged: int = 0
    ledger_usd_micros: int = 0  # as the entries say
    tasks_usd_micros: int = 0  # as tasks and prices say
    workers: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, booked: Booked) -> None:
        """Look at one task."""
        self.tasks += 1
        if not booked.final:
            if booked.charge is not None:
                self.differences.append(f"{booked.task_id}: open, and charged")
            return
        if booked.charge is None:
            self.differences.append(f"{booked.task_id}: final, without an entry")
            return
        self.charged += 1
        self.ledger_usd_micros += booked.charge.cost_usd_micros
        if booked.tariff is None:
            self.differences.append(f"{booked.task_id}: its price is gone")
            return
        expected = charge_of(booked.usage, booked.engine_us, booked.failure, booked.tariff)
        self.tasks_usd_micros += expected.cost_usd_micros
        if booked.charge != expected:
            self.differences.append(f"{booked.task_id}: {booked.charge}, expected {expected}")


async def reconcile_all(database: AsyncEngine) -> Reconciliation:
    """Recompute everything as of one moment."""
    found = Reconciliation()
    async with database.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        async for booked in reconcile.read_booked(connection):
            found.add(booked)
        for task_id in await reconcile.find_orphans(connection, limit=_MOST_ORPHANS):
            found.differences.append(f"{task_id}: charged, and not there")
        for task_id in await budgets.find_strays(connection, limit=_MOST_ORPHANS):
            found.differences.append(f"{task_id}: final, and holds a part of a budget")
        for row in await budgets.find_miscounted(connection):
            found.differences.append(
                f"{row.budget_id} from {row.period_start}: {row.spent_usd_micros} spent and {row.held_usd_micros}"
                f" held by its row, {row.spent} and {row.held} by ledger and holds"
            )
        for time in await reconcile.read_worker_times(connection):
            found.workers += 1
            fault = engine_time_fault(
                time.busy_us, time.attempts_us, ended=time.ended, quiet=time.quiet, lost=time.lost
            )
            if fault is not None:
                found.differences.append(f"worker {time.worker} of {time.started_at.isoformat()}: {fault}")
    return found


async def repair_budgets(database: AsyncEngine) -> int:
    """Release what final tasks hold and count budgets anew; the ledger is never touched. Return how many."""
    async with database.begin() as connection:
        strays = await budgets.find_strays(connection, limit=10_000)
        released = await budgets.release(connection, strays) if strays else 0
        wrong = {row.budget_id for row in await budgets.find_miscounted(connection)}
        for budget_id in sorted(wrong):
            await budgets.recount(connection, budget_id)
    return released + len(wrong)

"""What was used and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from core.usage import Group
from services.manage_tenants import require_tenant
from storage import usage
from storage.autocommit import autocommit
from storage.usage import Days, EngineSums, UsageRow

MOST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Rows by group, and their sum."""

    rows: list[UsageRow]
    total: UsageRow
    cut: bool  # there are more rows than MOST_ROWS


async def read_usage(
    database: AsyncEngine, days: Days, groups: Sequence[Group], tenant_id: str | None
) -> UsageReport:
    """Sum what one tenant used, or all."""
    async with database.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")  # rows and total of one moment
        rows = await usage.sum_usage(connection, days, groups, tenant_id=tenant_id, limit=MOST_ROWS + 1)
        (total,) = await usage.sum_usage(connection, days, (), tenant_id=tenant_id, limit=1)
    return UsageReport(rows[:MOST_ROWS], total, len(rows) > MOST_ROWS)


async def read_any_usage(
    database: AsyncEngine, days: Days, groups: Sequence[Group], tenant: str | None
) -> UsageReport:
    """Sum what a tenant, by id or name, used, or all. Raises: MissingError."""
    tenant_id = None
    if tenant is not None:
        async with autocommit(database) as connection:
            tenant_id = (await require_tenant(connection, tenant)).id
    return await read_usage(database, days, groups, tenant_id)


@dataclass(frozen=True, slots=True)
class Chargeback:
    """Engines' time of some days: who had it, and what nobody did."""

    engines: EngineSums
    tenants: list[UsageRow]  # by tenant

    @property
    def charged_us(self) -> int:
        return sum(row.engine_us for row in self.tenants)

    @property
    def open_us(self) -> int:
        """Of tasks that run, of tasks that ended on another day than they ran, and of lost workers' last seconds."""
        return self.engines.busy_us - self.charged_us - self.engines.free_us


async def read_chargeback(database: AsyncEngine, days: Days) -> Chargeback:
    """Share the engines' wall time among tenants, idle time and overhead."""
    async with database.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        engines = await usage.sum_engine_time(connection, days)
        tenants = await usage.sum_usage(connection, days, (Group.TENANT,), tenant_id=None, limit=MOST_ROWS)
    return Chargeback(engines, tenants)

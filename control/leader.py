"""One leader at a time, by a lease in Postgres under the database's clock."""

import asyncio
import time

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from services.lead import leave_lead, take_lead

log = structlog.get_logger()


class Leader:
    """Holds or seeks the lead of a role. `leading` turns false before another can hold the lease."""

    def __init__(self, database: AsyncEngine, role: str, holder: str, lease_s: float) -> None:
        self._database = database
        self._role, self._holder, self._lease_s = role, holder, lease_s
        self._until = 0.0

    @property
    def leading(self) -> bool:
        """Whether the lease surely still lasts: measured from before it was asked for."""
        return time.monotonic() < self._until

    async def campaign(self) -> None:
        """Take the lead when it is free and keep it, until cancelled."""
        while True:
            asked_at = time.monotonic()
            try:
                got = await take_lead(self._database, self._role, self._holder, self._lease_s)
            except Exception as error:  # noqa: BLE001 - whatever it is, the lease runs out by itself
                log.warning("lead_not_renewed", error=f"{type(error).__name__}: {error}")
                got = False
            was = self.leading
            if got:
                self._until = asked_at + self._lease_s
            if got and not was:
                log.info("leading", role=self._role)
            await asyncio.sleep(self._lease_s / 3)

    async def leave(self) -> None:
        """Give the lead up, so that another need not wait."""
        self._until = 0.0
        await leave_lead(self._database, self._role, self._holder)

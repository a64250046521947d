"""The leader of a role."""

from sqlalchemy.ext.asyncio import AsyncEngine

from storage import presence


async def take_lead(database: AsyncEngine, role: str, holder: str, lease_s: float) -> bool:
    """Take or renew the lead; False while another's lease lasts."""
    async with database.begin() as connection:
        return await presence.take_lead(connection, role, holder, lease_s=lease_s)


async def leave_lead(database: AsyncEngine, role: str, holder: str) -> None:
    """Give the lead up."""
    async with database.begin() as connection:
        await presence.leave_lead(connection, role, holder)

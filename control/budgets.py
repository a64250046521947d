"""Budgets: holds that outlived their tasks are released, and soft thresholds that were passed are told of."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncEngine

from services.manage_budgets import tend_budgets

_LIMIT = 500


class Budgets:
    """The budgets' tick. What it releases is counted: every final path releases its own holds."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def __call__(self) -> Mapping[str, int]:
        """Look at all budgets once."""
        tended = await tend_budgets(self._database, limit=_LIMIT)
        return {"holds_released": tended.released, "soft_thresholds": tended.past_soft}

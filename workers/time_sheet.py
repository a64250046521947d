"""A worker's engine time by day, as it is written down: totals, so that writing twice counts once."""

from datetime import UTC, date, datetime

from storage.engine_time import TimeSpent
from workers.accounts import EngineAccounts, EngineTime


class TimeSheet:
    """See the module. What a day before had is not written again: a write every few seconds had it."""

    def __init__(self, worker: str, model: str, accounts: EngineAccounts) -> None:
        self._worker, self._model, self._accounts = worker, model, accounts
        self._started_at = datetime.now(UTC)
        self._day: date | None = None
        self._before = self._latest = EngineTime(0, 0, 0)

    def read(self, moment: datetime, now: int, *, ended: bool = False) -> TimeSpent:
        """The day's time up to now. `now`: of the accounts' clock."""
        if self._day != moment.date():
            self._day, self._before = moment.date(), self._latest
        latest = self._latest = self._accounts.read(now)
        return TimeSpent(
            worker=self._worker,
            started_at=self._started_at,
            day=self._day,
            model=self._model,
            idle_us=latest.idle_us - self._before.idle_us,
            busy_us=latest.busy_us - self._before.busy_us,
            overhead_us=latest.overhead_us - self._before.overhead_us,
            ended=ended,
        )

"""What a task's ledger entry must be, told from the task and its price alone."""

from dataclasses import dataclass

from core.failures import RULES, Failure
from core.pricing import Tariff, Usage, cost_usd_micros


@dataclass(frozen=True, slots=True)
class Charge:
    """What an entry says."""

    usage: Usage
    engine_us: int
    cost_usd_micros: int


NO_CHARGE = Charge(Usage(0, 0, 0), 0, 0)


def charge_of(usage: Usage, engine_us: int, failure: Failure | None, tariff: Tariff) -> Charge:
    """Charge a final task: by the engine's counts, unless it failed on our side."""
    if failure is not None and not RULES[failure].billed:
        return NO_CHARGE
    return Charge(usage, engine_us, cost_usd_micros(usage, tariff, engine_us))


def engine_time_fault(busy_us: int, attempts_us: int, *, ended: bool, quiet: bool, lost: bool) -> str | None:
    """Say what is wrong between an engine's busy time and the sum over its attempts; None: nothing.

    A worker that was killed wrote neither the last of its engine's time nor of its attempts'; one whose leases ran
    out gave time to attempts that could not write it down. While a worker runs, the two are written at two moments.
    """
    if not (ended or quiet) or lost or busy_us == attempts_us:
        return None
    return f"its engine was busy for {busy_us} µs, its attempts used {attempts_us} µs"

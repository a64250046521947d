"""`headrace bench fairness`: a light tenant beside one that floods.

Arms: `solo`, the light tenant alone; `ours`, both on a stack with the fair order; `fifo`, both on one with
HEADRACE_ORDER=fifo. A further run on each, `equal`, has both tenants flood alike. The engine is the deterministic
one: what is measured is the order, and one step takes the same time however many run.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from bench import machine
from bench.harness import Result, Row, percentile, row
from bench.interactive import arrivals
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.rows_of import Lived, Rows
from bench.stack import Stack
from bench.tenants import add_tenant
from runtime.chat_template import ModelTokenizer

NAME = "fairness"
LIGHT, FLOOD = 0.3, 1.2  # of capacity


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    slots: int
    step_s: float
    tokens: tuple[int, int]  # in, out
    seconds: float  # a run of both; alone and equal take half
    ramp_s: float  # not measured

    @property
    def capacity(self) -> float:
        """Tasks a second."""
        return self.slots / (self.tokens[1] * self.step_s)


FULL = Plan(8, 0.02, (32, 64), 56, 6)
QUICK = Plan(4, 0.01, (32, 32), 8, 1)


class Arms:
    """Two stacks, each with two tenants, and the client."""

    def __init__(self, plan: Plan, stacks: Mapping[str, Stack], client: Peer) -> None:
        self._plan, self._stacks, self._client = plan, stacks, client
        self._rows = {name: Rows(stack.environment) for name, stack in stacks.items()}
        self._keys = {
            name: [str(stack.address["key"]), add_tenant(stack, "flood")] for name, stack in stacks.items()
        }
        tokenizer = ModelTokenizer(stacks["fifo"].model_path)
        messages = chat_messages(tokenizer, plan.tokens[0], "fairness")
        self._body = body(stacks["fifo"].model, messages, plan.tokens[1])

    def run(self, arm: str, rates: tuple[float, float], seconds: float, seed: object) -> "Run":
        """Have two tenants submit at these shares of capacity; keep what both got in the run's time."""
        name = "fifo" if arm.endswith("fifo") else "fair"
        entries = [
            {"at_s": at, "key": tenant, "priority": "standard", "body": self._body}
            for tenant, rate in enumerate(rates)
            if rate
            for at in arrivals(rate * self._plan.capacity, seconds, (seed, tenant))
        ]
        address = self._stacks[name].address
        answer = self._client.ask(
            host=address["host"], port=address["port"], keys=self._keys[name], arrivals=entries
        )
        if any(one["status"] != 202 for one in answer):
            raise ValueError("a task was refused")
        rows = self._rows[name]
        by_tenant: tuple[list[str], list[str]] = ([], [])
        for one, entry in zip(answer, entries, strict=True):
            by_tenant[entry["key"] == 1].append(one["task_id"])
        light = by_tenant[0]
        if "equal" not in arm:
            rows.wait(light, 120)
        else:
            rows.give_up(light)
        rows.give_up(by_tenant[1])
        rows.wait([*light, *by_tenant[1]], 60)
        return Run(arm, rows.read(light), rows.read(by_tenant[1]), self._plan.ramp_s, seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """One run's tasks."""

    arm: str
    light: list[Lived]
    flood: list[Lived]
    ramp_s: float
    seconds: float

    def figures(self) -> dict[str, Any]:
        """Return latencies of the light tenant and tokens of both, inside the run. Pure."""
        began = min(one.created for one in [*self.light, *self.flood])
        begin, end = began + self.ramp_s, began + self.seconds
        latencies = [one.total_s for one in self.light if one.created >= begin and one.state == "completed"]
        tokens = [
            sum(one.used_tokens for one in tasks if one.finished and begin <= one.finished <= end)
            for tasks in (self.light, self.flood)
        ]
        return {
            "arm": self.arm,
            "light": len(latencies),
            "p50_s": percentile(latencies, 0.5),
            "p99_s": percentile(latencies, 0.99),
            "tokens": tokens,
            "tokens_per_s": sum(tokens) / (end - begin),
        }


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 when all are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark; the engine is the deterministic one whatever is asked for."""
    plan = QUICK if quick else FULL
    settings = {
        "HEADRACE_MAX_NUM_SEQS": str(plan.slots),
        "HEADRACE_RESERVED_SLOTS": "0",
        "HEADRACE_DETERMINISTIC_STEP_S": str(plan.step_s),
    }
    with ExitStack() as opened:
        stacks = dict[str, Stack]()
        for order in ("fifo", "fair"):
            say(f"starting the stack with HEADRACE_ORDER={order}")
            stacks[order] = opened.enter_context(
                Stack("deterministic", {**settings, "HEADRACE_ORDER": order})
            )
        client = opened.enter_context(Peer("bench.open_client", log=stacks["fair"].logs / "bench.log"))
        arms = Arms(plan, stacks, client)
        found = dict[str, dict[str, Any]]()
        for arm, rates, share in (
            ("solo", (LIGHT, 0.0), 0.5),
            ("ours", (LIGHT, FLOOD), 1.0),
            ("fifo", (LIGHT, FLOOD), 1.0),
            ("equal", (FLOOD, FLOOD), 0.5),
        ):
            found[arm] = arms.run(arm, rates, plan.seconds * share, "fairness").figures()
            one = found[arm]
            say(f"{arm}: light p99 {one['p99_s']:.2f} s, {one['tokens_per_s']:.0f} tokens/s {one['tokens']}")
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, found),
        arms={"plan": asdict(plan), "runs": found},
    )


def rows(plan: Plan, found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Build the rows."""
    ours, fifo, solo = found["ours"], found["fifo"], found["solo"]
    note = (
        f"deterministic engine, {plan.slots} slots, capacity {plan.capacity:.1f} tasks/s of {plan.tokens[0]} in / "
        f"{plan.tokens[1]} out; light {LIGHT:g}×, flood {FLOOD:g}×, one run of {plan.seconds:g} s an arm; latency "
        f"from acceptance to the end: solo {solo['p99_s']:.2f} s, ours {ours['p99_s']:.2f} s, FIFO "
        f"{fifo['p99_s']:.2f} s"
    )
    return [
        row("light_p99_over_solo", [ours["p99_s"] / solo["p99_s"]], "ratio", "≤ 3", note),
        row(
            "light_p99_fifo_over_ours",
            [fifo["p99_s"] / ours["p99_s"]],
            "ratio",
            "≥ 10",
            "grows with the run's length",
        ),
        row(
            "jain",
            [jain(found["equal"]["tokens"])],
            "ratio",
            "≥ 0.99",
            f"both tenants at {FLOOD:g}× of capacity",
        ),
        row(
            "tokens_ratio", [ours["tokens_per_s"] / fifo["tokens_per_s"]], "ratio", "≥ 0.98", "ours over FIFO"
        ),
    ]

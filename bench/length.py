"""`headrace bench length`: a burst of requests of real lengths, and what the order of the queue makes of it.

Arms: `fcfs`, a stack with HEADRACE_ORDER=fifo; `ours`, one with the fair order; `oracle`, the FIFO stack given the
burst in the order of true lengths, as `core.ranking` takes them. Lengths are those of the Azure conversation
trace, divided by 8.
"""

import csv
import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.harness import Result, Row, percentile, row
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.rows_of import Lived, Rows
from bench.stack import Stack
from bench.tenants import set_bounds
from core.lanes import LengthBounds, LengthClass
from core.ranking import OUTPUT_WEIGHT
from runtime.chat_template import ModelTokenizer

NAME = "length"
TRACE = "azure_llm_2023_conv.csv"
DIVISOR = 8
BOUNDS = LengthBounds(64, 256)  # 512 and 2048, divided alike
LEAST_PROMPT = 32  # the template's own tokens and a word, with any of the models
SAME = {"HEADRACE_RESERVED_SLOTS": "0"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    burst: int
    slots: int
    rounds: Sequence[Sequence[str]]
    within_s: float  # a run


FULL = Plan(150, 8, (("fcfs", "ours", "oracle"), ("ours", "fcfs")), 240)
QUICK = Plan(24, 4, (("fcfs", "ours", "oracle"),), 120)


def lengths(trace: Path | None, count: int, seed: object) -> list[tuple[int, int]]:
    """Draw (prompt, output) tokens from the trace, scaled down. Raises: ValueError without the trace."""
    if trace is None or not trace.is_file():
        raise ValueError(f"needs --data, a folder that holds {TRACE}: no trace at {trace}")
    with trace.open() as lines:
        found = [(int(one["ContextTokens"]), int(one["GeneratedTokens"])) for one in csv.DictReader(lines)]
    drawn = random.Random(repr(seed)).sample(found, count)
    return [(max(LEAST_PROMPT, tokens_in // DIVISOR), max(1, out // DIVISOR)) for tokens_in, out in drawn]


def least_ratio(drawn: Sequence[tuple[int, int]], slots: int) -> float:
    """Return mean latency of shortest first over first come first, on slots that are never idle. Pure.

    No order does better: what it leaves is what these lengths have in them.
    """

    def mean(costs: Sequence[int]) -> float:
        ends, free = list[int](), [0] * slots
        for cost in costs:
            ends.append(heapq.heapreplace(free, free[0] + cost) + cost)
        return sum(ends) / len(ends)

    costs = [tokens_in + OUTPUT_WEIGHT * out for tokens_in, out in drawn]
    return mean(sorted(costs)) / mean(costs)


class Arms:
    """Two stacks and the client."""

    def __init__(self, plan: Plan, stacks: Mapping[str, Stack], client: Peer, trace: Path | None) -> None:
        self._trace = trace
        self._plan, self._stacks, self._client = plan, stacks, client
        self._rows = {name: Rows(stack.environment) for name, stack in stacks.items()}
        self._tokenizer = ModelTokenizer(stacks["fifo"].model_path)

    def run(self, arm: str, round_: int, burst: int | None = None) -> list[Lived]:
        """Run one burst."""
        name = "fair" if arm == "ours" else "fifo"
        drawn = lengths(self._trace, burst or self._plan.burst, ("burst", round_))
        order = (
            sorted(range(len(drawn)), key=lambda at: drawn[at][0] + OUTPUT_WEIGHT * drawn[at][1])
            if arm == "oracle"
            else range(len(drawn))
        )
        arrivals = [
            {
                "at_s": place * 0.002,  # the order of acceptance is that of the list
                "key": 0,
                "priority": "standard",
                "body": body(
                    self._stacks[name].model,
                    chat_messages(self._tokenizer, drawn[at][0], ("length", round_, at)),
                    drawn[at][1],
                ),
            }
            for place, at in enumerate(order)
        ]
        with self._stacks["fifo" if arm == "ours" else "fair"].paused():
            return self._live(name, arrivals)

    def _live(self, name: str, arrivals: list[dict[str, Any]]) -> list[Lived]:
        address = self._stacks[name].address
        answer = self._client.ask(
            host=address["host"], port=address["port"], keys=[address["key"]], arrivals=arrivals
        )
        ids = [one["task_id"] for one in answer if one["status"] == 202]
        if len(ids) != len(arrivals):
            statuses = sorted({one["status"] for one in answer} - {202})
            raise ValueError(f"{len(arrivals) - len(ids)} of {len(arrivals)} were refused: {statuses}")
        self._rows[name].wait(ids, self._plan.within_s)
        lived = self._rows[name].read(ids)
        if any(one.state != "completed" for one in lived):
            raise ValueError("a task did not complete")
        return lived


def figures(lived: Sequence[Lived]) -> dict[str, float]:
    """Return mean and percentiles of the latencies of one run. Pure."""
    long = [one.total_s for one in lived if BOUNDS.classify(one.tokens) is LengthClass.LONG]
    everyone = [one.total_s for one in lived]
    return {
        "mean_s": sum(everyone) / len(everyone),
        "p50_s": percentile(everyone, 0.5),
        "p99_s": percentile(everyone, 0.99),
        "long": len(long),
        "long_p99_s": percentile(long, 0.99) if long else 0.0,
        "tokens_per_s": sum(one.tokens for one in lived)
        / (max(one.finished or 0.0 for one in lived) - min(one.created for one in lived)),
    }


def bench(*, quick: bool, engine: str, say: Callable[[str], None], data: Path | None) -> Result:
    """Run the benchmark. `data`: the folder of the trace."""
    plan = QUICK if quick else FULL
    trace = None if data is None else data / TRACE
    lengths(trace, plan.burst, "before anything is started")
    slots = {"HEADRACE_MAX_NUM_SEQS": str(plan.slots), "HEADRACE_MAX_RUNNING_LONG": str(plan.slots), **SAME}
    with ExitStack() as opened:
        stacks = dict[str, Stack]()
        for order in ("fifo", "fair"):
            say(f"starting the stack with HEADRACE_ORDER={order}")
            stacks[order] = opened.enter_context(Stack(engine, {**slots, "HEADRACE_ORDER": order}))
            set_bounds(stacks[order], BOUNDS)
        client = opened.enter_context(Peer("bench.open_client", log=stacks["fair"].logs / "bench.log"))
        arms = Arms(plan, stacks, client, trace)
        say("warming up")
        for arm in ("fcfs", "ours"):
            arms.run(arm, -1, burst=plan.slots)
        rounds: list[dict[str, dict[str, float]]] = []
        for number, order_of_arms in enumerate(plan.rounds):
            rounds.append({})
            for arm in order_of_arms:
                rounds[-1][arm] = figures(arms.run(arm, number))
                one = rounds[-1][arm]
                say(f"{arm}: mean {one['mean_s']:.2f} s, p99 of long {one['long_p99_s']:.2f} s")
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, rounds, engine, least_ratio(lengths(trace, plan.burst, ("burst", 0)), plan.slots)),
        arms={"plan": asdict(plan), "rounds": rounds},
    )


def rows(
    plan: Plan, rounds: Sequence[Mapping[str, Mapping[str, float]]], engine: str, least: float
) -> list[Row]:
    """Build the rows. A round gives one figure each; `least`: what the best order could reach."""
    kind = "" if engine == "vllm" else f"{engine} engine, no model; "
    note = (
        f"{kind}burst of {plan.burst}, Azure conversation lengths ÷ {DIVISOR}, {plan.slots} slots, classes at "
        f"{BOUNDS.short} and {BOUNDS.medium} tokens; max_tokens is the true output length (ignore_eos), so a "
        f"caller's bound is as good as the oracle's knowledge; shortest first on ideal slots would be {least:.2f}"
    )
    first = rounds[0]
    fcfs_s, ours_s, oracle_s = (first[arm]["mean_s"] for arm in ("fcfs", "ours", "oracle"))
    gained, ratio = (fcfs_s - ours_s) / (fcfs_s - oracle_s), oracle_s / fcfs_s
    return [
        row(
            "mean_latency_ratio",
            [one["ours"]["mean_s"] / one["fcfs"]["mean_s"] for one in rounds],
            "ratio",
            "≤ 0.5",
            note,
        ),
        row(
            "long_p99_ratio",
            [one["ours"]["long_p99_s"] / one["fcfs"]["long_p99_s"] for one in rounds],
            "ratio",
            "≤ 1.3",
            f"{kind}{first['ours']['long']:.0f} long tasks of {plan.burst} in the first round",
        ),
        row(
            "oracle_gain_share",
            [gained],
            "ratio",
            "",
            f"{kind}oracle: shortest first by true length, {ratio:.2f} of FCFS",
        ),
    ]

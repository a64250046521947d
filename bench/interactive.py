"""`headrace bench interactive`: what a person waits for the first token while batch work fills the engine.

Arms: `idle`, people alone; `batch`, batch work alone; `fifo`, both in one queue, in order of arrival, on a worker
that reserves no slot and takes none away; `ours`, both with their priorities under the default rules. `batch` and
`fifo` run on a stack of the plain worker, `idle` and `ours` on one of ours; both stay loaded and the one that is
not measured stands still. People arrive at the same random moments in all arms of a round, whatever becomes of them.

Runs begin in the steady state: the first task of each place asks for a random part of the output tokens.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from bench import machine
from bench.harness import Result, Row, percentile, row
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.stack import Stack
from runtime.chat_template import ModelTokenizer

NAME = "interactive"
PLAIN = {"HEADRACE_RESERVED_SLOTS": "0", "HEADRACE_MAX_PREEMPTIONS": "0", "HEADRACE_ORDER": "fifo"}
ROUNDS = (("idle", "batch", "ours", "fifo"), ("fifo", "ours", "batch", "idle"))


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    slots: int  # of a worker; fewer than `in_flight`, so that batch work always waits for one
    in_flight: int
    batch_tokens: tuple[int, int]  # in, out
    people_tokens: tuple[int, int]
    rate: float  # people a second
    seconds: float  # a run with both; the arms that have only one side take `alone` of it
    alone: float
    ramp_s: float  # at the beginning of a run, not measured
    rounds: int


FULL = Plan(32, 64, (128, 256), (64, 32), 0.5, seconds=50, alone=0.6, ramp_s=8, rounds=2)
QUICK = Plan(6, 12, (64, 48), (32, 8), 3.0, seconds=6, alone=0.6, ramp_s=1, rounds=1)


@dataclass(frozen=True, slots=True)
class Run:
    """One arm's run, as its figures."""

    arm: str
    waits_s: list[float]  # of people, from the moment they came to their first text
    batch_rate: float  # tokens a second
    people_rate: float
    step_s: float | None  # median time between two chunks of a person's answer, which are sent token by token

    @property
    def p99_s(self) -> float:
        """The wait that 99 of 100 did not exceed."""
        return percentile(self.waits_s, 0.99)


def measured(arm: str, answer: Mapping[str, Any], begin_s: float, end_s: float) -> Run:
    """Make figures of what the client saw between two moments of a run. Pure."""
    gaps = [
        later - before
        for one in answer["people"]
        for before, later in pairwise(one["chunks_s"])
        if begin_s <= before and later <= end_s
    ]
    waits = [
        one["chunks_s"][0] - one["asked_s"] for one in answer["people"] if begin_s <= one["asked_s"] <= end_s
    ]
    return Run(
        arm,
        waits,
        batch_rate=_rate(answer["batch"], begin_s, end_s),
        people_rate=_rate(answer["people"], begin_s, end_s),
        step_s=statistics.median(gaps) if gaps else None,
    )


def _rate(tasks: Sequence[Mapping[str, Any]], begin_s: float, end_s: float) -> float:
    """Output tokens a second: a task's tokens are spread over its chunks."""
    tokens = 0.0
    for one in tasks:
        if one["chunks_s"]:
            inside = sum(begin_s <= at <= end_s for at in one["chunks_s"])
            tokens += one["tokens"] * inside / len(one["chunks_s"])
    return tokens / (end_s - begin_s)


def arrivals(rate: float, seconds: float, seed: object) -> Iterator[float]:
    """Moments of a Poisson process."""
    chance, at = random.Random(repr(seed)), 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        yield at


class Arms:
    """Two stacks and the client."""

    def __init__(self, plan: Plan, ours: Stack, plain: Stack, client: Peer) -> None:
        self._plan, self._ours, self._plain, self._client = plan, ours, plain, client
        self._tokenizer = ModelTokenizer(ours.model_path)

    def run(self, arm: str, round_: int, *, seconds: float | None = None) -> Run:
        """Run one arm once."""
        plan = self._plan
        stack, other = (self._ours, self._plain) if arm in ("idle", "ours") else (self._plain, self._ours)
        if seconds is None:
            seconds = plan.seconds * (plan.alone if arm in ("idle", "batch") else 1)
        with other.paused():
            answer = self._client.ask(
                **stack.address,
                batch=[] if arm == "idle" else self._batch(stack.model, round_, seconds),
                people=[] if arm == "batch" else self._people(stack.model, round_, seconds),
                in_flight=plan.in_flight,
                seconds=seconds,
                priorities=["batch", "interactive"] if arm in ("idle", "ours") else ["standard", "standard"],
            )
        return measured(arm, answer, min(plan.ramp_s, seconds / 2), seconds)

    def _batch(self, model: str, round_: int, seconds: float) -> list[dict[str, Any]]:
        tokens_in, tokens_out = self._plan.batch_tokens
        chance = random.Random(repr(("first", round_)))
        count = self._plan.in_flight * 2 + int(seconds * 4)  # more than any engine here gets through
        made = [
            body(model, chat_messages(self._tokenizer, tokens_in, ("batch", round_, number)), tokens_out)
            for number in range(count)
        ]
        for one in made[: self._plan.in_flight]:
            one["max_tokens"] = chance.randint(tokens_out // 16, tokens_out)
        return made

    def _people(self, model: str, round_: int, seconds: float) -> list[tuple[float, dict[str, Any]]]:
        tokens_in, tokens_out = self._plan.people_tokens
        return [
            (
                at,
                body(
                    model, chat_messages(self._tokenizer, tokens_in, ("person", round_, number)), tokens_out
                ),
            )
            for number, at in enumerate(arrivals(self._plan.rate, seconds, ("people", round_)))
        ]


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark."""
    plan = QUICK if quick else FULL
    slots = {"HEADRACE_MAX_NUM_SEQS": str(plan.slots)}
    with ExitStack() as opened:
        say("starting two stacks")
        # the threads must outlive the stacks: the kernel ends a child with the thread that started it
        starters = opened.enter_context(ThreadPoolExecutor(2))
        starting = [
            starters.submit(opened.enter_context, Stack(engine, settings))
            for settings in (slots, {**slots, **PLAIN})
        ]
        ours, plain = (one.result() for one in starting)
        client = opened.enter_context(Peer("bench.mixed_client", log=ours.logs / "bench.log"))
        arms = Arms(plan, ours, plain, client)
        say("warming up")
        for arm in ("ours", "fifo"):
            arms.run(arm, -1, seconds=min(6.0, plan.seconds))
        rounds: list[dict[str, Run]] = []
        for number in range(plan.rounds):
            rounds.append({})
            for arm in ROUNDS[number % 2]:
                run = arms.run(arm, number)
                rounds[-1][arm] = run
                wait = f"p99 {run.p99_s:.3f} s of {len(run.waits_s)}" if run.waits_s else "no people"
                say(f"{arm}: {wait}, batch {run.batch_rate:.1f} tokens/s")
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, rounds, engine),
        arms={"plan": asdict(plan), "rounds": [[asdict(run) for run in one.values()] for one in rounds]},
    )


def rows(plan: Plan, rounds: Sequence[Mapping[str, Run]], engine: str) -> list[Row]:
    """Build the rows. A round gives one figure each."""
    kind = "" if engine == "vllm" else f"{engine} engine, no model: says nothing about the product; "
    steps = [_step_s(one) for one in rounds]
    people = sum(len(one["ours"].waits_s) for one in rounds)
    recipe = (
        f"{kind}{plan.in_flight} batch tasks of {plan.batch_tokens[0]} in / {plan.batch_tokens[1]} out in flight, "
        f"{plan.slots} slots, {plan.rate:g} people/s of {plan.people_tokens[0]}/{plan.people_tokens[1]}, "
        f"{len(rounds)} rounds, {people} people in an arm, client on the same cores"
    )
    p99 = {arm: statistics.median(one[arm].p99_s for one in rounds) for arm in ("idle", "ours", "fifo")}
    waits = (
        f"p99 idle {p99['idle']:.3f} s, ours {p99['ours']:.3f} s, FIFO {p99['fifo']:.1f} s; "
        f"a step {statistics.median(steps) * 1000:.0f} ms"
    )
    return [
        row(
            "ttft_p99_over_idle",
            [(one["ours"].p99_s - one["idle"].p99_s) / step for one, step in zip(rounds, steps, strict=True)],
            "engine steps",
            "≤ 2",
            f"{recipe}; {waits}",
        ),
        row(
            "ttft_p99_fifo_over_ours",
            [one["fifo"].p99_s / one["ours"].p99_s for one in rounds],
            "ratio",
            "≥ 10",
            f"{kind}{waits}; those who still waited at the end were served when batch work was cancelled",
        ),
        row(
            "batch_tokens_ratio",
            [one["ours"].batch_rate / (one["batch"].batch_rate - one["ours"].people_rate) for one in rounds],
            "ratio",
            "≥ 0.90",
            f"{kind}over batch work alone on all slots, less the people's tokens",
        ),
    ]


def _step_s(one: Mapping[str, Run]) -> float:
    step_s = one["ours"].step_s
    if not step_s:
        raise ValueError("no answer had two chunks: nothing to measure a step by")
    return step_s

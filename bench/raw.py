"""`headrace bench raw`: the whole stack against its own engine with nothing around it.

Arms: `raw`, AsyncLLM.generate in a process of its own; `stack`, submit to the end of the events' stream. Same
model, engine arguments, prompts and requests in flight; both engines stay loaded, and what is not measured
stands still. The load on the stack runs on the same machine and is charged to the stack's arm.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench import machine
from bench.harness import Result, Row, interleaved, paired, percentile, quiet_pairs, row, spread
from bench.machine import CpuMeter, Groups
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.stack import Stack
from runtime.chat_template import ModelTokenizer

NAME = "raw"
PROMPT_TOKENS = 128
QUIET_CORES = 0.1  # of other processes: a pair with more is left out of the rows where two quieter ones are
NOT_OURS = ("engine", "client", "raw", "raw engine", "elsewhere")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    requests: int  # a run
    in_flight: int
    output_tokens: int
    pairs: int  # undisturbed ones
    budget_s: float  # of the paired runs: no further pair is begun when it would not fit
    single: int  # requests a run at 1 in flight
    many: int  # requests a run at 32 in flight
    scale_pairs: int
    warm_up: int  # requests


FULL = Plan(128, 64, 64, pairs=4, budget_s=360, single=4, many=64, scale_pairs=2, warm_up=64)
QUICK = Plan(64, 64, 16, pairs=2, budget_s=60, single=2, many=32, scale_pairs=1, warm_up=16)


class Arms:
    """Both arms, ready to run."""

    def __init__(self, stack: Stack, raw: Peer, client: Peer) -> None:
        self._stack, self._raw, self._client = stack, raw, client
        self._tokenizer = ModelTokenizer(stack.model_path)
        self._meter = CpuMeter(self._groups)

    def _groups(self) -> Groups:
        raw = machine.family(self._raw.pid)
        client = machine.family(self._client.pid)
        return {**self._stack.groups(), "client": client, "raw": raw[:1], "raw engine": raw[1:]}

    def bodies(self, count: int, output_tokens: int, seed: object) -> list[dict[str, Any]]:
        """Build requests; the same seed gives the same ones."""
        model = self._stack.model
        return [
            body(model, chat_messages(self._tokenizer, PROMPT_TOKENS, (seed, number)), output_tokens)
            for number in range(count)
        ]

    def run(self, arm: str, bodies: list[dict[str, Any]], in_flight: int) -> dict[str, Any]:
        """Run one arm once. Raises: ValueError when it made other than the tokens asked for."""
        self._meter.restart()
        if arm == "raw":
            with self._stack.paused():
                answer = self._raw.ask(do="run", bodies=bodies, in_flight=in_flight)
                cpu = self._meter.read()
        else:
            with self._raw.paused():
                answer = self._client.ask(**self._stack.address, bodies=bodies, in_flight=in_flight)
                cpu = self._meter.read()
        expected = sum(one["max_tokens"] for one in bodies)
        if answer["tokens"] != expected:
            raise ValueError(f"{arm} made {answer['tokens']} tokens, not {expected}")
        return {
            "arm": arm,
            "requests": len(bodies),
            "in_flight": in_flight,
            "tokens": expected,
            "chunks": answer["chunks"],
            "wall_s": round(answer["wall_s"], 3),
            "tokens_per_s": round(expected / answer["wall_s"], 2),
            "first_p50_s": round(percentile(answer["first_s"], 0.5), 4),
            "first_p99_s": round(percentile(answer["first_s"], 0.99), 4),
            "total_p50_s": round(percentile(answer["total_s"], 0.5), 4),
            "core_s": cpu,
        }


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark."""
    plan = QUICK if quick else FULL
    say("starting the stack")
    # slots kept for people would leave some of what is in flight waiting: the raw engine keeps none
    with Stack(engine, {"HEADRACE_RESERVED_SLOTS": "0"}) as stack:
        say("starting the raw engine")
        log = stack.logs / "bench.log"
        with (
            Peer("bench.raw_engine", log=log, env=stack.environment) as raw,
            Peer("bench.client", log=log) as client,
        ):
            about = raw.ask(do="hello")
            return _measure(plan, Arms(stack, raw, client), about, say)


def _measure(plan: Plan, arms: Arms, about: dict[str, Any], say: Callable[[str], None]) -> Result:
    say("warming up")
    for arm in ("raw", "stack"):
        arms.run(arm, arms.bodies(plan.warm_up, 8, "warm-up"), plan.in_flight)
    runs = _pairs(plan, arms, say)
    scale = list[dict[str, Any]]()
    for number, count in enumerate(interleaved("1", "32", plan.scale_pairs)):
        requests = plan.single if count == "1" else plan.many
        bodies = arms.bodies(requests, plan.output_tokens, ("scale", number))
        scale.append(arms.run("stack", bodies, int(count)))
        say(f"stack, {count} in flight: {scale[-1]['tokens_per_s']:.1f} tokens/s")
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, runs, scale, about["engine"]),
        arms={
            "engine": about,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": plan.output_tokens,
            "core_ms_per_token": {
                arm: core_ms_per_token([one for one in runs if one["arm"] == arm]) for arm in ("raw", "stack")
            },
            "runs": runs,
            "scale_runs": scale,
        },
    )


def _pairs(plan: Plan, arms: Arms, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run pairs until enough were undisturbed or the time is up; two are run whatever happens."""
    runs, began, pair, order = list[dict[str, Any]](), time.monotonic(), 0, interleaved("raw", "stack", 100)
    while True:
        # a pair's runs get the same prompts; two pairs get different ones
        bodies = arms.bodies(plan.requests, plan.output_tokens, ("pair", pair))
        for arm in order[2 * pair : 2 * pair + 2]:
            runs.append(arms.run(arm, bodies, plan.in_flight))
            say(f"{arm}: {runs[-1]['tokens_per_s']:.1f} tokens/s, {elsewhere(runs[-1]):.2f} cores elsewhere")
        pair += 1
        spent = time.monotonic() - began
        both = zip(runs[::2], runs[1::2], strict=True)
        quiet = sum(max(map(elsewhere, runs_of_pair)) <= QUIET_CORES for runs_of_pair in both)
        if pair >= 2 and (quiet >= plan.pairs or spent + spent / pair > plan.budget_s):
            return runs


def elsewhere(run: dict[str, Any]) -> float:
    """Return how many cores processes that are not the benchmark's kept busy during a run."""
    return float(run["core_s"]["elsewhere"]) / float(run["wall_s"])


def rows(
    plan: Plan, runs: Sequence[dict[str, Any]], scale: Sequence[dict[str, Any]], engine: str
) -> list[Row]:
    """Build the rows from the runs."""
    kind = "" if engine == "vllm" else f"{engine} engine, no model: says nothing about the product; "
    pairs = quiet_pairs([elsewhere(one) for one in runs], QUIET_CORES)
    used = [one for at in pairs for one in runs[2 * at : 2 * at + 2]]
    ratios = paired([one["arm"] for one in used], [one["tokens_per_s"] for one in used], "raw")
    busy = spread([elsewhere(one) for one in used])
    note = (
        f"{kind}{len(pairs)} of {len(runs) // 2} pairs, {plan.requests} requests a run, {PROMPT_TOKENS} in / "
        f"{plan.output_tokens} out, {plan.in_flight} in flight, client on the same cores, no reserved slots; "
        f"processes that are not the benchmark's took {busy.low:.2f} to {busy.high:.2f} cores"
    )
    added = [
        ours(stack) - raw["core_s"]["raw"] / raw["tokens"] * 1000
        for raw, stack in (
            sorted(used[at : at + 2], key=lambda one: one["arm"] == "stack") for at in range(0, len(used), 2)
        )
    ]
    in_flight = [str(one["in_flight"]) for one in scale]
    scaled = paired(in_flight, [one["tokens_per_s"] for one in scale], "1")
    return [
        row("tokens_ratio", ratios, "ratio", "≥ 0.95", note),
        row(
            "core_ms_per_token_ours",
            added,
            "core-ms",
            "≤ 0.30",
            f"{kind}all processes but engine and client, less the raw arm's own main process: {_shares(used)}",
        ),
        row(
            "throughput_32_over_1",
            scaled,
            "ratio",
            "≥ 5",
            f"{kind}whole stack, {plan.many} requests against {plan.single}, {plan.output_tokens} out",
        ),
    ]


def ours(run: dict[str, Any]) -> float:
    """Return core-ms a token of everything that is the platform and not the engine."""
    spent = sum(value for name, value in run["core_s"].items() if name not in NOT_OURS)
    return float(spent) / int(run["tokens"]) * 1000


def _shares(used: Sequence[dict[str, Any]]) -> str:
    """Say which process takes how much of it, most first."""
    arms = {arm: core_ms_per_token([one for one in used if one["arm"] == arm]) for arm in ("raw", "stack")}
    of_ours = {name: value for name, value in arms["stack"].items() if name not in NOT_OURS}
    listed = sorted(of_ours.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {value:.2f}" for name, value in listed) + f"; raw {arms['raw']['raw']:.2f}"


def core_ms_per_token(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return core-ms a token by process group over several runs."""
    tokens = sum(one["tokens"] for one in runs)
    names = runs[0]["core_s"] if runs else ()
    return {name: round(sum(one["core_s"][name] for one in runs) / tokens * 1000, 4) for name in names}

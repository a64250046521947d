"""`headrace bench growth`: what concurrency and open streams cost.

In flight: arms `raw`, the deterministic engine in a process with nothing around it, which says what the engine itself
could give; `stack`, submit to the end of the events' stream. A step takes 50 ms, whatever it holds: no model runs, and
what grows is the work around the engine.

Open streams: tasks of a model without a worker, each followed on a connection of its own at one API process, ten
and then more of them. At each count the API's memory and idle CPU time are read, and one live stream runs whose text is
the time of its step; what it takes longer than with no idle stream, before and after, is what those add.
"""

import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from bench import machine
from bench.harness import Result, Row, interleaved, percentile, row, spread
from bench.machine import CpuMeter
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.raw import NOT_OURS, PROMPT_TOKENS, Arms, elsewhere, ours
from bench.stack import Stack
from bench.tenants import run_command
from runtime.chat_template import ModelTokenizer
from workers.deterministic import STAMP

NAME = "growth"
STEP_S = 0.05
IDLE_MODEL = "bench-idle"
SPARE_FILES = 500  # that a process has open besides its streams


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    in_flight: Mapping[int, int]  # requests a run
    output_tokens: tuple[int, int]  # least, most
    pairs: int  # at each
    streams: tuple[int, ...]
    idle_s: float  # of looking on
    live_chunks: int  # a run
    live_runs: int  # at each count


FULL = Plan({1: 8, 8: 64, 64: 384, 256: 768}, (16, 48), 2, (10, 1_000, 10_000), 25.0, 200, 2)
QUICK = Plan({1: 2, 8: 8}, (4, 12), 1, (10, 50), 2.0, 10, 1)


def open_files() -> int:
    """Let this process and those that it starts open as many files as is allowed; return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def fitting(wanted: Sequence[int], files: int) -> tuple[int, ...]:
    """Return the counts of streams that a process with this limit can have; the largest is cut, not left out.

    Raises: ValueError where not even the smallest count fits.
    """
    most = files - SPARE_FILES
    if files == resource.RLIM_INFINITY or most >= wanted[-1]:
        return tuple(wanted)
    if most < wanted[0]:
        raise ValueError(
            f"a process may open {files} files here, {wanted[0]} streams and what else is open need "
            f"{wanted[0] + SPARE_FILES}: raise the hard limit (ulimit -Hn)"
        )
    return tuple(sorted({min(count, most) for count in wanted}))


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark; the engine is the deterministic one whatever is asked for."""
    plan = QUICK if quick else FULL
    streams = fitting(plan.streams, open_files())
    settings = {
        "HEADRACE_DETERMINISTIC_STEP_S": str(STEP_S),
        "HEADRACE_MAX_NUM_SEQS": str(max(plan.in_flight)),
        "HEADRACE_RESERVED_SLOTS": "0",
        "HEADRACE_MAX_QUEUED_TASKS": "1000000",
    }
    with ExitStack() as opened:
        say("starting the stack")
        stack = opened.enter_context(Stack("deterministic", settings))
        log = stack.logs / "bench.log"
        raw = opened.enter_context(Peer("bench.raw_engine", log=log, env=stack.environment))
        client = opened.enter_context(Peer("bench.client", log=log))
        raw.ask(do="hello")
        runs = _in_flight(plan, Arms(stack, raw, client), say)
        idle = opened.enter_context(Peer("bench.idle_client", log=log))
        stamps = opened.enter_context(Peer("bench.stamps", log=log))
        looks = Looks(plan, stack, idle, stamps, say).all(streams)
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=[*flight_rows(plan, runs), *stream_rows(plan, looks)],
        arms={"plan": asdict(plan), "step_s": STEP_S, "runs": runs, "streams": looks},
    )


def _in_flight(plan: Plan, arms: Arms, say: Callable[[str], None]) -> list[dict[str, Any]]:
    most = max(plan.in_flight)
    for arm in ("raw", "stack"):
        arms.run(arm, arms.bodies(most, 2, "warm-up"), most)
    runs = list[dict[str, Any]]()
    for count, requests in plan.in_flight.items():
        for number, arm in enumerate(interleaved("raw", "stack", plan.pairs)):
            seed = (count, number // 2)
            bodies, chance = arms.bodies(requests, 0, seed), random.Random(repr(seed))
            for one in bodies:  # of many lengths: else all would end and begin at one moment
                one["max_tokens"] = chance.randint(*plan.output_tokens)
            runs.append(arms.run(arm, bodies, count))
            last = runs[-1]
            say(
                f"{arm}, {count} in flight: {last['tokens_per_s']:.0f} tokens/s, first token p50 "
                f"{last['first_p50_s'] * 1000:.0f} ms, p99 {last['first_p99_s'] * 1000:.0f} ms"
            )
    return runs


class Looks:
    """What is seen of a stack while streams are open on it."""

    def __init__(
        self, plan: Plan, stack: Stack, idle: Peer, stamps: Peer, say: Callable[[str], None]
    ) -> None:
        self._plan, self._stack, self._idle, self._stamps, self._say = plan, stack, idle, stamps, say
        self._meter = CpuMeter(stack.groups)

    def all(self, counts: Sequence[int]) -> list[dict[str, Any]]:
        """Look at none, at each count, and at none again. Raises: ValueError when a stream is lost."""
        plan, stack = self._plan, self._stack
        run_command(stack, "model", "add", IDLE_MODEL, "--path", str(stack.model_path))
        request = body(IDLE_MODEL, chat_messages(ModelTokenizer(stack.model_path), 32, "idle"), 16)
        envelope = {"url": "/v1/chat/completions", "body": request}
        self._say(f"queueing {counts[-1]} tasks")
        self._idle.ask(do="submit", **stack.address, envelope=envelope, count=counts[-1])
        self._live(1)  # to warm up
        looks = [self._look(0, 0, plan.live_runs)]
        memory = looks[0]["api_bytes"]
        for count in counts:
            began = time.monotonic()
            opened = self._idle.ask(do="open", count=count)
            looks.append(self._look(count, memory, plan.live_runs, time.monotonic() - began))
            if opened != count or self._idle.ask(do="count") != count:
                raise ValueError(f"of {count} streams some were closed")
        self._idle.ask(do="close")
        looks.append(self._look(0, memory, plan.live_runs))
        return looks

    def _look(self, count: int, before: int, live_runs: int, opening_s: float = 0.0) -> dict[str, Any]:
        self._meter.restart()
        began = time.monotonic()
        time.sleep(self._plan.idle_s)
        cpu, watched_s = self._meter.read(), time.monotonic() - began
        api_bytes = sum(one.memory_info().rss for one in self._stack.groups()["api"])
        live = [self._live(self._plan.live_chunks) for _ in range(live_runs)]
        cores = {name: round(spent / watched_s, 4) for name, spent in cpu.items()}
        stream_bytes = round((api_bytes - before) / count) if count else 0
        self._say(
            f"{count} idle streams: {stream_bytes / 1000:.1f} kB each, API idle at {cores['api']:.3f} cores, a live "
            f"chunk {spread([one['p50_ms'] for one in live]).median:.2f} ms"
        )
        return {
            "streams": count,
            "opening_s": round(opening_s, 2),
            "api_bytes": api_bytes,
            "stream_bytes": stream_bytes,
            "cores": cores,
            "live": live,
        }

    def _live(self, chunks: int) -> dict[str, float]:
        request = {
            "model": self._stack.model,
            "messages": [{"role": "user", "content": f"{STAMP} {time.monotonic_ns()}"}],
            "max_tokens": chunks + 1,
            "ignore_eos": True,
            "stream": True,
        }
        later = self._stamps.ask(**self._stack.address, bodies=[request], apart_s=0)["later_ms"]
        return {f"p{round(share * 100)}_ms": round(percentile(later, share), 3) for share in (0.5, 0.99)}


def flight_rows(plan: Plan, runs: Sequence[dict[str, Any]]) -> list[Row]:
    """Build the rows of what is in flight."""
    made = list[Row]()
    for count, requests in plan.in_flight.items():
        of_count = [one for one in runs if one["in_flight"] == count]
        pairs = [
            sorted(of_count[at : at + 2], key=lambda one: str(one["arm"]))
            for at in range(0, len(of_count), 2)
        ]  # raw, stack
        busy = spread([elsewhere(one) for one in of_count])
        note = (
            f"deterministic engine, no model, {STEP_S * 1000:.0f} ms a step; {len(pairs)} pairs, {requests} requests a "
            f"run, {PROMPT_TOKENS} in / {plan.output_tokens[0]} to {plan.output_tokens[1]} out, client on the same "
            f"cores; raw {spread([one['tokens_per_s'] for one, _ in pairs]).median:.0f} tokens/s; other processes took "
            f"{busy.low:.2f} to {busy.high:.2f} cores"
        )
        spent = [ours(stack) - raw["core_s"]["raw"] / raw["tokens"] * 1000 for raw, stack in pairs]
        first = "submit to first token as the client sees it, less the same of the raw engine, step included"
        made += [
            row(
                f"tokens_ratio_{count}",
                [stack["tokens_per_s"] / raw["tokens_per_s"] for raw, stack in pairs],
                "ratio",
                "",
                note,
            ),
            row(f"core_ms_per_token_ours_{count}", spent, "core-ms", "", by_process(pairs)),
            *(
                row(
                    f"first_added_{share}_ms_{count}",
                    [1000 * (stack[f"first_{share}_s"] - raw[f"first_{share}_s"]) for raw, stack in pairs],
                    "ms",
                    "",
                    first,
                )
                for share in ("p50", "p99")
            ),
        ]
    return made


def by_process(pairs: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Say what each process of ours took a token, the most first; the worker's less the raw engine's process."""
    tokens = sum(stack["tokens"] for _, stack in pairs)
    spent = {
        name: sum(stack["core_s"][name] for _, stack in pairs) / tokens * 1000
        for name in pairs[0][1]["core_s"]
        if name not in NOT_OURS
    }
    if "worker" in spent:
        spent["worker"] -= sum(raw["core_s"]["raw"] for raw, _ in pairs) / tokens * 1000
    ordered = sorted(spent.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {value:.3f}" for name, value in ordered if value >= 0.0005)


def stream_rows(plan: Plan, looks: Sequence[dict[str, Any]]) -> list[Row]:
    """Build the rows of open streams."""
    none = [run for look in looks if not look["streams"] for run in look["live"]]
    usual = {share: spread([run[f"{share}_ms"] for run in none]).median for share in ("p50", "p99")}
    counts = [look["streams"] for look in looks if look["streams"]]
    cut = (
        ""
        if tuple(counts) == plan.streams
        else f"; {plan.streams[-1]} were wanted, the limit of open files is lower"
    )
    made = list[Row]()
    for look in (one for one in looks if one["streams"]):
        count, cores = look["streams"], look["cores"]
        others = ", ".join(
            f"{name} {value:.3f}" for name, value in sorted(cores.items()) if name not in ("api", "elsewhere")
        )
        live = (
            f"one live stream of {1 / STEP_S:g} chunks/s, {len(look['live'])} runs of {plan.live_chunks} chunks, less "
            f"the {usual['p50']:.2f} ms (p99 {usual['p99']:.2f} ms) without idle streams"
        )
        made += [
            row(
                f"stream_kb_{count}",
                [look["stream_bytes"] / 1000],
                "kB",
                "",
                f"resident memory of the one API process, more than with no stream, a stream; a task a stream{cut}",
            ),
            row(
                f"idle_cores_{count}",
                [cores["api"]],
                "cores",
                "",
                f"API, over {plan.idle_s:g} s, a comment a stream every 10 s; others: {others}",
            ),
            *(
                row(
                    f"live_added_{share}_ms_{count}",
                    [run[f"{share}_ms"] - usual[share] for run in look["live"]],
                    "ms",
                    "",
                    live,
                )
                for share in ("p50", "p99")
            ),
        ]
    return made

"""`headrace bench chunk`: what the way over Redis and the API adds to a streamed chunk.

Arms: `direct`, the engine in the very process that serves HTTP; `stack`, the whole platform. Both on the deterministic
engine, whose text is the time of its step: no model runs, and what is measured is the way of a chunk alone. Streams
begin one after another; every step gives each of them a chunk at the same moment, as continuous batching does.
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from bench import machine
from bench.harness import Result, Row, interleaved, percentile, row
from bench.peer import Peer, PeerError, die_with_parent, log_tail
from bench.stack import Stack
from workers.deterministic import STAMP

NAME = "chunk"
STEP_S = 0.2  # five chunks a second and stream


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    streams: int
    chunks: int  # a stream
    pairs: int
    apart_s: float  # between two streams' begins


FULL = Plan(streams=64, chunks=100, pairs=3, apart_s=0.02)
QUICK = Plan(streams=8, chunks=10, pairs=1, apart_s=0.02)


class Direct:
    """The direct arm's server."""

    def __init__(self, stack: Stack, port: int) -> None:
        self.address = {"host": "127.0.0.1", "port": port, "key": "none"}
        self._log = stack.logs / "direct.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.direct", str(port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **stack.environment},
                preexec_fn=die_with_parent,
            )

    def ready(self, within_s: float = 60.0) -> None:
        """Wait until it serves. Raises: PeerError."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.address['port']}/", timeout=1)
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.1)
        raise PeerError(f"the direct server did not start:\n{log_tail(self._log)}")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.wait()


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark; `engine` has no part in it."""
    plan = QUICK if quick else FULL
    say("starting the stack")
    slots = plan.streams + 1  # synchronous calls may not take a worker's last one
    settings = {"HEADRACE_DETERMINISTIC_STEP_S": str(STEP_S), "HEADRACE_MAX_NUM_SEQS": str(slots)}
    with Stack("deterministic", settings) as stack:
        direct = Direct(stack, machine.free_port())
        try:
            direct.ready()
            with Peer("bench.stamps", log=stack.logs / "bench.log") as client:
                addresses = {"stack": stack.address, "direct": direct.address}
                runs = _runs(plan, stack.model, addresses, client, say)
        finally:
            direct.close()
    return Result(NAME, machine.describe(), rows(plan, runs), {"plan": asdict(plan), "runs": runs})


def _runs(
    plan: Plan, model: str, addresses: dict[str, dict[str, Any]], client: Peer, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    runs = list[dict[str, Any]]()
    for number, arm in enumerate(["direct", "stack", *interleaved("direct", "stack", plan.pairs)]):
        bodies = [
            {
                "model": model,
                "messages": [{"role": "user", "content": f"{STAMP} {number} {at}"}],
                "max_tokens": plan.chunks,
                "ignore_eos": True,
                "stream": True,
            }
            for at in range(plan.streams)
        ]
        answer = client.ask(**addresses[arm], bodies=bodies, apart_s=plan.apart_s)
        run = {"arm": arm} | {
            f"{which}_p{round(share * 100)}_ms": round(percentile(answer[f"{which}_ms"], share), 3)
            for which in ("first", "later")
            for share in (0.5, 0.99)
        }
        if number >= 2:  # two to warm up
            runs.append(run)
        say(f"{arm}: {run['later_p50_ms']:.2f} ms, p99 {run['later_p99_ms']:.2f} ms")
    return runs


def rows(plan: Plan, runs: Sequence[dict[str, Any]]) -> list[Row]:
    """Build the rows: differences within pairs of neighbouring runs."""
    pairs = [sorted(runs[at : at + 2], key=lambda run: str(run["arm"])) for at in range(0, len(runs), 2)]

    def added(name: str) -> list[float]:
        return [ours[name] - direct[name] for direct, ours in pairs]

    note = f"deterministic engine, no model: {plan.streams} streams, {1 / STEP_S:g} chunks/s each, {len(pairs)} pairs"
    held = [ours["first_p50_ms"] / ours["later_p50_ms"] for _, ours in pairs]
    first = "engine to client, the first chunk's median over that of the later ones: above 1, it was held"
    return [
        row("added_p50_ms", added("later_p50_ms"), "ms", "≤ 2", note),
        row("added_p99_ms", added("later_p99_ms"), "ms", "≤ 10", note),
        row("first_chunk_ratio", held, "ratio", "≤ 1.5", first),
    ]

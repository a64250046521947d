"""`headrace bench serve`: the whole platform against vLLM's own server, measured by vLLM's own client.

Arms: `vllm`, `vllm.entrypoints.openai.api_server`, what `vllm serve` runs; `stack`, our API. `vllm bench serve` sends
the same requests to both: arrivals and lengths of the Azure conversation trace (open loop), lengths divided by eight,
arrivals stretched to 50 % and 80 % of what `vllm` sustains. Both engines stay loaded, with the same arguments.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from bench import machine
from bench.harness import Result, Row, interleaved, spread
from bench.peer import PeerError, die_with_parent, log_tail
from bench.stack import READY_S, Stack

NAME = "serve"
TRACE = "azure_llm_2023_conv.csv"
DIVISOR = 8  # of lengths: two cores are not the trace's machines
SLOTS = 64
CONTEXT = 4096
LOADS = (0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    seconds: float  # of arrivals a run
    pairs: int  # at each load
    closed: int  # requests that measure the capacity


FULL = Plan(seconds=40, pairs=2, closed=96)
QUICK = Plan(seconds=4, pairs=1, closed=8)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(file: Path, count: int) -> list[Arrival]:
    """Read the trace's first requests. Raises: FileNotFoundError."""
    arrivals = list[Arrival]()
    with file.open(newline="") as lines:
        for line in csv.DictReader(lines):
            at = datetime.fromisoformat(line["TIMESTAMP"][:26]).timestamp()
            lengths = (max(4, int(line[name]) // DIVISOR) for name in ("ContextTokens", "GeneratedTokens"))
            arrivals.append(Arrival(at, *lengths))
            if len(arrivals) == count:
                break
    return [Arrival(one.at_s - arrivals[0].at_s, one.prompt_tokens, one.output_tokens) for one in arrivals]


def at_rate(trace: Sequence[Arrival], requests_per_s: float, seconds: float) -> list[Arrival]:
    """Take as many requests as that time holds at that rate, and stretch their arrivals to fill it."""
    taken = trace[: max(2, round(requests_per_s * seconds))]
    factor = seconds / max(taken[-1].at_s, 1e-3)
    return [Arrival(one.at_s * factor, one.prompt_tokens, one.output_tokens) for one in taken]


class VllmServer:
    """The peer: the server that `vllm serve` starts."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.url = f"http://127.0.0.1:{machine.free_port()}"
        self._log = stack.logs / "vllm-serve.log"
        from workers.vllm_dtype import cpu_dtype

        engine = {
            "--model": str(stack.model_path),
            "--served-model-name": name,
            "--max-num-seqs": str(SLOTS),
            "--max-model-len": str(CONTEXT),
            "--kv-cache-memory-bytes": stack.environment.get("HEADRACE_KV_CACHE_BYTES", str(1 << 30)),
            "--block-size": "32",
            "--dtype": cpu_dtype(stack.model_path),
            "--port": self.url.rpartition(":")[2],
        }
        words = [word for pair in engine.items() for word in pair]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **stack.environment},
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"{self.url}/health", timeout=2)
                return self
            time.sleep(0.5)
        self.close()
        raise PeerError(f"vLLM's server did not start:\n{log_tail(self._log)}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def paused(self) -> AbstractContextManager[None]:
        """Have it and its engine stand still."""
        return machine.standing_still(machine.family(self._process.pid))

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()


class Client:
    """`vllm bench serve`."""

    def __init__(self, folder: Path, stack: Stack, urls: dict[str, str]) -> None:
        self._folder, self._stack, self._urls = folder, stack, urls
        self._environment = {
            **os.environ,
            "OPENAI_API_KEY": stack.address["key"],
            "NO_PROXY": "127.0.0.1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(folder),
        }
        import vllm

        # the CPU build is not called vllm in its metadata, where the command looks its own version up
        about = folder / f"vllm-{vllm.__version__.partition('+')[0]}+cpu.dist-info" / "METADATA"
        about.parent.mkdir()
        release = about.parent.name.removesuffix(".dist-info").removeprefix("vllm-")
        about.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")

    def open_loop(self, arm: str, arrivals: Sequence[Arrival], first: int) -> dict[str, Any]:
        """Send requests at their moments; prompts are made up from their numbers, which begin at `first`."""
        trace = self._folder / "trace.jsonl"
        trace.write_text(
            "".join(
                json.dumps(
                    {
                        "timestamp": one.at_s,
                        "input_length": one.prompt_tokens,
                        "output_length": one.output_tokens,
                        "hash_ids": [number],
                    }
                )
                + "\n"
                for number, one in enumerate(arrivals, first)
            )
        )
        # a prompt is one block of tokens, whatever its length
        block = ("--timed-trace-chunk-hash-size", str(CONTEXT))
        data = ("--dataset-name", "timed_trace", "--dataset-path", str(trace), *block)
        return self._run(arm, *data, count=len(arrivals))

    def closed_loop(self, arm: str, requests: int) -> dict[str, Any]:
        """Keep every slot taken."""
        sizes = ("--random-input-len", "128", "--random-output-len", "32")
        return self._run(
            arm, "--dataset-name", "random", *sizes, "--max-concurrency", str(SLOTS), count=requests
        )

    def _run(self, arm: str, *dataset: str, count: int) -> dict[str, Any]:
        result = self._folder / "result.json"
        result.unlink(missing_ok=True)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
                # a trace with moments has prompts of token ids, which chats do not take
                *("--backend", "openai", "--endpoint", "/v1/completions"),
                *("--base-url", self._urls[arm], "--model", self._stack.model, "--ignore-eos", "--seed", "3"),
                *("--tokenizer", str(self._stack.model_path), "--num-prompts", str(count), *dataset),
                *("--percentile-metrics", "ttft,tpot", "--metric-percentiles", "50,99"),
                *("--save-result", "--save-detailed"),
                *("--result-dir", str(self._folder), "--result-filename", result.name),
            ],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0 or not result.exists():
            raise PeerError(f"vllm bench serve failed:\n{(done.stdout + done.stderr)[-3000:]}")
        made: dict[str, Any] = json.loads(result.read_text())
        if made["completed"] != count:
            errors = sorted({error for error in made["errors"] if error})
            raise PeerError(f"{arm} completed {made['completed']} of {count} requests: {errors}")
        return made


def bench(*, quick: bool, engine: str, say: Callable[[str], None], data: Path | None) -> Result:
    """Run the benchmark. Raises: ValueError without the trace or for another engine."""
    if engine != "vllm":
        raise ValueError("the peer is vLLM's server: there is nothing to compare another engine with")
    if data is None or not (data / TRACE).is_file():
        raise ValueError(f"needs --data, a folder that holds {TRACE}")
    plan = QUICK if quick else FULL
    trace = read_trace(data / TRACE, 2000)
    with ExitStack() as opened:
        say("starting the stack")
        # vLLM's server lets everybody wait: so does the stack here
        settings = {"HEADRACE_MAX_NUM_SEQS": str(SLOTS), "HEADRACE_SYNC_START_S": "60"}
        stack = opened.enter_context(Stack(engine, settings))
        say("starting vLLM's server")
        peer = opened.enter_context(VllmServer(stack, stack.model))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        host, port = stack.address["host"], stack.address["port"]
        client = Client(folder, stack, {"vllm": peer.url, "stack": f"http://{host}:{port}"})
        say("measuring the capacity")
        client.closed_loop("stack", plan.closed // 2)
        client.closed_loop("vllm", plan.closed // 2)  # both warm
        with stack.paused():
            tokens_per_s = client.closed_loop("vllm", plan.closed)["output_throughput"]
        say(f"vllm: {tokens_per_s:.0f} tokens/s")
        runs = [
            run
            for load in LOADS
            for run in _at_load(load, float(tokens_per_s), plan, trace, client, stack, peer, say)
        ]
    arms = {"plan": asdict(plan), "capacity_tokens_per_s": tokens_per_s, "runs": runs}
    return Result(NAME, machine.describe(), rows(plan, runs), arms)


def _at_load(
    load: float,
    capacity: float,
    plan: Plan,
    trace: Sequence[Arrival],
    client: Client,
    stack: Stack,
    peer: VllmServer,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    mean = sum(one.output_tokens for one in trace) / len(trace)
    arrivals = at_rate(trace, load * capacity / mean, plan.seconds)
    runs = list[dict[str, Any]]()
    for number, arm in enumerate(interleaved("vllm", "stack", plan.pairs)):
        # a pair's runs get the same prompts, and no other run: they would be in the prefix cache
        first = (round(load * 100) * plan.pairs + number // 2) * len(trace)
        with stack.paused() if arm == "vllm" else peer.paused():
            made = client.open_loop(arm, arrivals, first)
        runs.append(
            {
                "arm": arm,
                "load": load,
                "requests": len(arrivals),
                "tokens_per_s": round(made["output_throughput"], 2),
                "ttft_p50_ms": round(made["median_ttft_ms"], 2),
                "ttft_p99_ms": round(made["p99_ttft_ms"], 2),
            }
        )
        say(
            f"{load:.0%} {arm}: {runs[-1]['tokens_per_s']} tokens/s, first after {runs[-1]['ttft_p50_ms']} ms"
        )
    return runs


def rows(plan: Plan, runs: Sequence[dict[str, Any]]) -> list[Row]:
    """Build the rows: the worse of the two loads by its median, with that load's spread."""
    note = (
        f"Azure conv arrivals, lengths ÷ {DIVISOR}, {plan.seconds:g} s a run, {plan.pairs} pairs at each load"
    )
    figures = (
        ("tokens_ratio", "tokens_per_s", "≥ 0.97", min),
        ("ttft_p50_ratio", "ttft_p50_ms", "≤ 1.15", max),
        ("ttft_p99_ratio", "ttft_p99_ms", "≤ 1.25", max),
    )
    made = list[Row]()
    for name, figure, target, worse in figures:
        by_load = {}
        for load in LOADS:
            pairs = [run for run in runs if run["load"] == load]
            ratios = [
                ours[figure] / theirs[figure]
                for ours, theirs in (
                    sorted(pairs[at : at + 2], key=lambda run: str(run["arm"]))
                    for at in range(0, len(pairs), 2)
                )
            ]
            by_load[load] = spread(ratios)
        load = worse(by_load, key=lambda load: by_load[load].median)
        of = by_load[load]
        median, low, high = (round(value, 4) for value in (of.median, of.low, of.high))
        worst = f"at {load:.0%} of capacity, the worse; {note}"
        made.append(Row(name, median, low, high, "ratio", target, worst))
    return made

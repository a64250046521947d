"""`headrace bench single`: where a token's time goes when one stream runs, and what settings give back.

Each arm is the worker's own vLLM engine in a process with nothing around it, started as the arm says; one at a time,
the engine as it is by default first, in between and last. With one stream a step must read all weights: what the
machine's cores can read a second, measured in the same run, bounds it. One more arm carries stopwatches
(`engine_timers`).
"""

import json
import os
import signal
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import engine_timers, machine
from bench.harness import Result, Row, row
from bench.peer import Peer, PeerError
from bench.prompts import body, chat_messages
from bench.single_engine import PATH
from bench.stack import demo_model
from runtime.chat_template import ModelTokenizer

NAME = "single"
DEFAULT, TIMED = "default", "timed"
PROMPT_TOKENS = 64
QUESTION = "What is the capital of France?"
START_S = 210.0  # an engine that takes longer is given up


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    arms: tuple[str, ...]
    tokens: int  # a run with one stream
    singles: int  # such runs
    in_flight: int  # of the runs with many
    requests: int
    many_tokens: int  # a request
    manys: int


FULL = Plan(
    (DEFAULT, "libgomp", "core_in_worker", DEFAULT, "one_thread", "compiled", DEFAULT, TIMED),
    tokens=64, singles=4, in_flight=32, requests=64, many_tokens=32, manys=2,
)  # fmt: skip
QUICK = Plan((DEFAULT, TIMED), tokens=16, singles=2, in_flight=8, requests=8, many_tokens=8, manys=1)


@dataclass(frozen=True, slots=True)
class Arm:
    """How an engine is set up other than by default."""

    what: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


def arm(name: str, folder: Path) -> Arm:
    """Return an arm by name; `folder` takes what it writes."""
    match name:
        case "one_thread":
            core = str(min(os.sched_getaffinity(0)))
            return Arm("one compute thread", {"VLLM_CPU_OMP_THREADS_BIND": core})
        case "libgomp":
            # set and empty: the worker's own choice is left out, and vLLM puts torch's there
            return Arm("torch's own OpenMP instead of Intel's", {"LD_PRELOAD": ""})
        case "core_in_worker":
            return Arm(
                "vLLM's scheduler in the process that computes (VLLM_ENABLE_V1_MULTIPROCESSING=0 and "
                'distributed_executor_backend="uni"; vLLM calls it unsupported on CPU)',
                {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
                {"distributed_executor_backend": "uni"},
            )
        case "compiled":
            caches = {"VLLM_CACHE_ROOT": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
            return Arm("torch.compile", {"TORCHDYNAMO_DISABLE": "0", **caches}, {"enforce_eager": False})
        case "timed":
            path = os.pathsep.join(
                [str(engine_timers.plugin_folder(folder / "plugin")), os.environ.get("PYTHONPATH", "")]
            )
            watched = {engine_timers.FOLDER: str(folder), "PYTHONPATH": path.rstrip(os.pathsep)}
            return Arm("stopwatches in vLLM's processes", watched)
    return Arm("as a worker starts it")


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark. Raises: ValueError for any engine but vLLM: it alone is measured."""
    if engine != "vllm":
        raise ValueError(f"it measures vLLM itself: there is nothing to see with engine {engine!r}")
    plan, path = QUICK if quick else FULL, demo_model()
    tokenizer, runs, failed = ModelTokenizer(path), list[dict[str, Any]](), dict[str, str]()
    timed: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        for number, one in enumerate(plan.arms):
            folder = Path(name) / f"{number}"
            folder.mkdir()
            say(f"starting {one}")
            try:
                runs.append(_run(plan, one, arm(one, folder), path, tokenizer, Path(name) / f"{number}.log"))
            except PeerError as error:
                if one in (DEFAULT, TIMED):
                    raise
                failed[one] = str(error)[-1500:]
                say(f"{one} failed: {str(error).splitlines()[0]}")
                continue
            say(
                f"{one}: {runs[-1]['step_ms']:.1f} ms a token with one stream, {runs[-1]['many_tokens_per_s']:.0f} "
                f"tokens/s with {plan.in_flight}"
            )
            if one == TIMED:
                timed = step_times(folder, runs[-1])
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, runs, timed, failed),
        arms={"plan": asdict(plan), "runs": runs, "timed_ms": timed, "failed": failed},
    )


def _run(plan: Plan, name: str, how: Arm, path: Path, tokenizer: ModelTokenizer, log: Path) -> dict[str, Any]:
    def prompt(seed: object) -> list[int]:
        return tokenizer.encode_chat(body("", chat_messages(tokenizer, PROMPT_TOKENS, seed), 1))

    environment = {**how.environment, PATH: str(path)}
    with Peer("bench.single_engine", json.dumps(how.arguments), log=log, env=environment) as peer:
        late = threading.Timer(START_S, os.kill, (peer.pid, signal.SIGTERM))
        late.start()
        try:
            about = peer.ask(do="hello")
        finally:
            late.cancel()
        read = peer.ask(do="bandwidth") if name == DEFAULT else None
        question = tokenizer.encode_chat({"messages": [{"role": "user", "content": QUESTION}]})
        answer = peer.ask(do="answer", prompt=question, tokens=32)
        peer.ask(do="run", prompts=[prompt("warm-up")], tokens=plan.tokens, in_flight=1)
        singles = [
            peer.ask(do="run", prompts=[prompt(("single", at))], tokens=plan.tokens, in_flight=1)
            for at in range(plan.singles)
        ]
        ids = (
            [
                peer.ask(
                    do="run",
                    prompts=[prompt(("single", at))],
                    tokens=plan.tokens,
                    in_flight=1,
                    detokenize=False,
                )
                for at in range(plan.singles)
            ]
            if name == DEFAULT
            else []
        )
        manys = [
            peer.ask(
                do="run",
                prompts=[prompt(("many", number, at)) for at in range(plan.requests)],
                tokens=plan.many_tokens,
                in_flight=plan.in_flight,
            )
            for number in range(plan.manys)
        ]
    expected = plan.tokens * plan.singles, plan.requests * plan.many_tokens * plan.manys
    if (sum(one["tokens"] for one in singles), sum(one["tokens"] for one in manys)) != expected:
        raise ValueError(f"{name} made other than {expected} tokens")
    single_ms = [one["wall_s"] / one["tokens"] * 1000 for one in singles]
    many = [one["tokens"] / one["wall_s"] for one in manys]
    return {
        "arm": name,
        "what": how.what,
        **about,
        "read_bytes_per_s": read,
        "answer": answer,
        "step_ms": round(statistics.median(single_ms), 3),
        "single_ms": [round(value, 3) for value in single_ms],
        "ids_only_ms": [round(one["wall_s"] / one["tokens"] * 1000, 3) for one in ids],
        "many_tokens_per_s": round(statistics.median(many), 2),
        "many": [round(value, 2) for value in many],
        "windows": [(one["began_ns"], one["ended_ns"]) for one in singles],
    }


def step_times(folder: Path, run: Mapping[str, Any]) -> dict[str, float]:
    """Return milliseconds a step by what they went into, from the stopwatches of the timed arm.

    All but `outputs` and `detokenize` follow one another and add up to `step`: those two are the front's, which works
    while the core is at its next step. Raises: ValueError when a stopwatch never ran.
    """
    found = engine_timers.read(folder, run["windows"])
    silent = [name for name, spent in found.items() if not spent]
    if silent:
        raise ValueError(f"nothing was timed of {', '.join(silent)}: vLLM is not as it was")
    steps = found.pop("steps")
    ms = {name: spent / steps / 1e6 for name, spent in found.items()}
    step = sum(ended - began for began, ended in run["windows"]) / steps / 1e6
    scheduler, attention = ms["schedule"] + ms["update"], ms["attention"] + ms["kv_write"]
    computing = ms["execute"] + ms["sample_step"]
    split = {
        "linear": ms["linear"],
        "logits": ms["logits"],
        "attention": attention,
        "small_ops": ms["small_ops"],
        "forward_rest": ms["forward"] - ms["linear"] - attention - ms["small_ops"],
        "sampling": ms["sample"],
        "runner_rest": computing - ms["forward"] - ms["logits"] - ms["sample"],
        "scheduler": scheduler,
        "core_to_worker": ms["core_step"] - scheduler - computing,
        "between_steps": step - ms["core_step"],
        "outputs": ms["outputs"],
        "detokenize": ms["detokenize"],
        "step": step,
    }
    return {name: round(value, 4) for name, value in split.items()}


_WHAT = {
    "linear": "the layers' matrices",
    "logits": "the output matrix, which is the embedding's again",
    "attention": "attention and writing the KV cache",
    "small_ops": "embedding, norms, rotary embedding, activation",
    "forward_rest": "the rest of the forward pass: Python and dispatch between its operators",
    "sampling": "choosing the token",
    "runner_rest": "preparing inputs and results in the computing process",
    "scheduler": "scheduling, and taking results back",
    "core_to_worker": "between the scheduler's process and the computing one: two calls over shared memory a step",
    "between_steps": "of the core's loop, and a request's way in and out",
    "outputs": "in our process, while the next step runs: not part of the sum",
    "detokenize": "part of outputs",
}


def rows(
    plan: Plan, runs: Sequence[dict[str, Any]], timed: Mapping[str, float], failed: Mapping[str, str]
) -> list[Row]:
    """Build the rows."""
    defaults = [one for one in runs if one["arm"] == DEFAULT]
    single_ms = [value for one in defaults for value in one["single_ms"]]
    weights = defaults[0]["weight_bytes"]
    bound_ms = [weights / one["read_bytes_per_s"] * 1000 for one in defaults]
    usual_bound_ms = statistics.median(bound_ms)
    note = (
        f"{len(single_ms)} runs of {plan.tokens} tokens on {len(defaults)} engines as a worker starts them, "
        f"{PROMPT_TOKENS} in; nothing around AsyncLLM"
    )
    made = [
        row("step_ms", single_ms, "ms", "", note),
        row(
            "bound_ms",
            bound_ms,
            "ms",
            "",
            f"{weights} bytes of weights at the {weights / usual_bound_ms / 1e6:.1f} GB/s that all cores read of 1 GiB",
        ),
        row(
            "tokens_over_bound",
            [usual_bound_ms / value for value in single_ms],
            "ratio",
            "1: the bound",
            "tokens/s with one stream over read bandwidth ÷ weight bytes",
        ),
    ]
    if timed:
        slower = timed["step"] / statistics.median(single_ms)
        for name, what in _WHAT.items():
            share = (
                f"{what}; {timed[name] / timed['step']:.1%} of the timed arm's step of {timed['step']:.1f} ms"
            )
            if name == "linear":
                share += f", which the stopwatches made {slower:.2f} times as long"
            made.append(row(f"{name}_ms", [timed[name]], "ms", "", share))
    ids = [statistics.median(one["single_ms"]) / value for one in defaults for value in one["ids_only_ms"]]
    made.append(row("no_detokenize_single", ids, "ratio", "", "tokens/s with detokenize=False, over default"))
    for at, one in enumerate(runs):
        if one["arm"] not in (DEFAULT, TIMED):
            made += _arm_rows(plan, one, _around(runs, at))
    for name, why in failed.items():
        made.append(Row(f"{name}_single", 0.0, 0.0, 0.0, "ratio", "", f"did not run: {why.splitlines()[0]}"))
    return made


def _around(runs: Sequence[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    """The default engines that ran last before and first after a run."""
    before = [one for one in runs[:at] if one["arm"] == DEFAULT][-1:]
    return before + [one for one in runs[at:] if one["arm"] == DEFAULT][:1]


def _arm_rows(plan: Plan, run: dict[str, Any], around: Sequence[dict[str, Any]]) -> list[Row]:
    usual_ms = statistics.mean(one["step_ms"] for one in around)
    usual_many = statistics.mean(one["many_tokens_per_s"] for one in around)
    same = sum(one == other for one, other in zip(run["answer"], around[0]["answer"], strict=True))
    note = (
        f"{run['what']}: {run['step_ms']:.1f} ms a token against {usual_ms:.1f}; started in {run['start_s']:.0f} s, "
        f"{run['processes']} processes; {same} of {len(run['answer'])} greedy tokens as by default"
    )
    many = (
        f"{plan.in_flight} in flight, {plan.requests} requests of {PROMPT_TOKENS} in / {plan.many_tokens} out: "
        f"{run['many_tokens_per_s']:.0f} tokens/s against {usual_many:.0f}"
    )
    return [
        row(f"{run['arm']}_single", [usual_ms / value for value in run["single_ms"]], "ratio", "", note),
        row(
            f"{run['arm']}_{plan.in_flight}", [value / usual_many for value in run["many"]], "ratio", "", many
        ),
    ]

"""`headrace bench batch`: the Batch API against vLLM's own offline generation, and what the order of lines brings.

Arms of throughput: `offline`, LLM.generate on all prompts at once; `batch`, from POST /v1/batches to `completed`,
output file written. Same model, engine arguments, prompts, lengths. Arms of order, both through the Batch API on
shuffled lines of which each begins with one of 16 long prefixes: `file`, run in the file's order; `prefix`, in the
order that a batch gets by itself.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import machine
from bench.harness import Result, Row, interleaved, paired, row
from bench.peer import Peer
from bench.prompts import body, chat_messages
from bench.rows_of import Rows
from bench.stack import Stack, demo_model
from runtime.chat_template import ModelTokenizer

NAME = "batch"
PREFIXES = 16
KV_VALUES_PER_TOKEN = 11_520  # the demo model's
_COMPLETED_AT = "SELECT extract(epoch FROM completed_at) FROM batches WHERE id = %s"
POLL_S = 2.0  # each one costs CPU time that the engine wants; the end's moment is read from the batch's row


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    requests: int  # of a run of throughput
    output_tokens: tuple[int, int]  # fewest and most: answers differ in length
    pairs: int
    slots: int
    kv_tokens: int
    lines_a_prefix: int
    prefix_tokens: int
    prefix_output_tokens: int
    prefix_pairs: int
    prefix_slots: int
    prefix_kv_tokens: int  # 16 prefixes do not fit: on a real machine they are longer

    def settings(self, slots: int, kv_tokens: int) -> dict[str, str]:
        """Those of a stack that has only batch work, as the other arm has."""
        from workers.vllm_dtype import cpu_dtype  # loads torch

        width = 4 if cpu_dtype(demo_model()) == "float32" else 2
        return {
            "HEADRACE_MAX_NUM_SEQS": str(slots),
            "HEADRACE_KV_CACHE_BYTES": str(kv_tokens * KV_VALUES_PER_TOKEN * width),
            "HEADRACE_RESERVED_SLOTS": "0",
        }


FULL = Plan(128, (32, 224), 4, 32, 16_384, 5, 1024, 4, 2, 4, 5120)
QUICK = Plan(32, (4, 12), 1, 32, 16_384, 2, 1024, 4, 1, 4, 5120)


class Arms:
    """All of them, ready to run; without an `offline` engine only ours."""

    def __init__(self, stack: Stack, offline: Peer | None = None) -> None:
        self._stack, self._offline = stack, offline
        address = stack.address
        self._http = httpx.Client(
            base_url=f"http://{address['host']}:{address['port']}",
            headers={"Authorization": f"Bearer {address['key']}"},
            timeout=60,
            trust_env=False,
        )
        self._tokenizer = ModelTokenizer(stack.model_path)
        self._files: dict[str, str] = {}

    def questions(self, file: Path, count: int, output_tokens: tuple[int, int]) -> list[dict[str, Any]]:
        """The first GSM8K questions, each with an answer of a random length."""
        chance = random.Random("lengths")
        lines = file.read_text().splitlines()[:count]
        if len(lines) < count:
            raise ValueError(f"{file} has only {len(lines)} prompts")
        return [
            body(
                self._stack.model,
                [{"role": "user", "content": json.loads(line)["question"]}],
                chance.randint(*output_tokens),
            )
            for line in lines
        ]

    def shared(self, plan: Plan, seed: object) -> list[dict[str, Any]]:
        """Shuffled requests that begin with one of the prefixes, which are long instructions."""
        instructions = [
            chat_messages(self._tokenizer, plan.prefix_tokens, (seed, number))[0]["content"]
            for number in range(PREFIXES)
        ]
        bodies = [
            body(
                self._stack.model,
                [{"role": "system", "content": text}, {"role": "user", "content": f"Question {number}?"}],
                plan.prefix_output_tokens,
            )
            for text in instructions
            for number in range(plan.lines_a_prefix)
        ]
        random.Random(repr(seed)).shuffle(bodies)
        return bodies

    def offline(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        """Run vLLM's own."""
        assert self._offline is not None
        with self._stack.paused():
            answer = self._offline.ask(do="run", bodies=bodies)
        return _run("offline", answer["tokens"], answer["wall_s"], bodies)

    def batch(self, arm: str, bodies: list[dict[str, Any]], order: str = "prefix") -> dict[str, Any]:
        """Run a batch; its input is uploaded before the clock starts. Raises: ValueError."""
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
            for number, body in enumerate(bodies)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        upload = {"file": ("input.jsonl", content)}
        file = self._ask("POST", "/v1/files", files=upload, data={"purpose": "batch"})
        asked = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "1h",
            "order": order,
        }
        with self._offline.paused() if self._offline else nullcontext():
            began = time.time()
            batch = self._ask("POST", "/v1/batches", json=asked)
            while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                time.sleep(POLL_S)
                batch = self._ask("GET", f"/v1/batches/{batch['id']}")
            wall_s = self._completed_at(batch["id"]) - began
        if batch["request_counts"]["completed"] != len(bodies):
            raise ValueError(f"the batch did not complete: {batch}")
        usage = batch["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        return _run(arm, usage["output_tokens"], wall_s, bodies) | {
            "prompt_tokens": usage["input_tokens"],
            "cached_tokens": cached,
        }

    def _completed_at(self, batch_id: str) -> float:
        """When a batch was complete, output file written: the API says it in whole seconds."""
        with Rows(self._stack.environment) as database:
            ((moment,),) = database.execute(_COMPLETED_AT, batch_id)
        if moment is None:
            raise ValueError(f"batch {batch_id} did not complete")
        return float(moment)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        answer = self._http.request(method, path, **options)
        if not answer.is_success:
            raise ValueError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json()


def _run(arm: str, tokens: int, wall_s: float, bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    expected = sum(one["max_tokens"] for one in bodies)
    if tokens != expected:
        raise ValueError(f"{arm} made {tokens} tokens, not {expected}")
    return {
        "arm": arm,
        "requests": len(bodies),
        "tokens": tokens,
        "wall_s": round(wall_s, 3),
        "requests_per_s": round(len(bodies) / wall_s, 3),
        "tokens_per_s": round(tokens / wall_s, 2),
    }


def bench(*, quick: bool, engine: str, say: Callable[[str], None], data: Path | None) -> Result:
    """Run the benchmark. Raises: ValueError without the prompts."""
    prompts = (data or Path()) / "gsm8k_prompts.jsonl"
    if data is None or not prompts.is_file():
        raise ValueError("needs --data, a folder that holds gsm8k_prompts.jsonl")
    plan = QUICK if quick else FULL
    say("starting the stack")
    with Stack(engine, plan.settings(plan.slots, plan.kv_tokens)) as stack:
        say("starting vLLM's offline engine")
        with Peer("bench.offline_engine", log=stack.logs / "bench.log", env=stack.environment) as offline:
            about = offline.ask(do="hello")
            runs = _throughput(plan, Arms(stack, offline), prompts, say)
    say("starting a stack with a small cache")
    with Stack(engine, plan.settings(plan.prefix_slots, plan.prefix_kv_tokens)) as stack:
        orders = _orders(plan, Arms(stack), prompts, say)
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, runs, orders, about["engine"]),
        arms={"plan": asdict(plan), "engine": about, "runs": runs, "order_runs": orders},
    )


def _throughput(plan: Plan, arms: Arms, prompts: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    say("warming up")
    warm_up = arms.questions(prompts, plan.slots, (4, 4))
    arms.offline(warm_up)
    arms.batch("warm-up", warm_up)
    runs = list[dict[str, Any]]()
    questions = arms.questions(prompts, plan.requests, plan.output_tokens)
    for arm in interleaved("offline", "batch", plan.pairs):
        runs.append(arms.offline(questions) if arm == "offline" else arms.batch("batch", questions))
        say(f"{arm}: {runs[-1]['tokens_per_s']:.1f} tokens/s")
    return runs


def _orders(plan: Plan, arms: Arms, prompts: Path, say: Callable[[str], None]) -> list[dict[str, Any]]:
    say("warming up")
    arms.batch("warm-up", arms.questions(prompts, plan.prefix_slots, (4, 4)))
    orders = list[dict[str, Any]]()
    for number, order in enumerate(interleaved("file", "prefix", plan.prefix_pairs)):
        # each run has prefixes that no earlier one left in the cache
        orders.append(arms.batch(order, arms.shared(plan, ("order", number)), order))
        say(f"{order}: {orders[-1]['requests_per_s']:.2f} requests/s, {orders[-1]['cached_tokens']} cached")
    return orders


def rows(
    plan: Plan, runs: Sequence[dict[str, Any]], orders: Sequence[dict[str, Any]], engine: str
) -> list[Row]:
    """Build the rows from the runs."""
    kind = "" if engine == "vllm" else f"{engine} engine, no model: says nothing about the product; "
    throughput = paired([one["arm"] for one in runs], [one["tokens_per_s"] for one in runs], "offline")
    order = paired([one["arm"] for one in orders], [one["requests_per_s"] for one in orders], "file")
    least, most = plan.output_tokens
    return [
        row(
            "throughput_ratio",
            throughput,
            "ratio",
            "≥ 0.97",
            f"{kind}{plan.pairs} pairs, the first {plan.requests} GSM8K prompts, {least} to {most} out, "
            f"{plan.slots} slots, KV cache of {plan.kv_tokens} tokens; ours from POST /v1/batches to completed, "
            "theirs LLM.generate from messages to outputs",
        ),
        row(
            "prefix_sorted_ratio",
            order,
            "ratio",
            "≥ 1.2",
            f"{kind}{plan.prefix_pairs} pairs, {PREFIXES} prefixes of {plan.prefix_tokens} tokens × "
            f"{plan.lines_a_prefix} lines, shuffled, {plan.prefix_output_tokens} out, "
            f"{plan.prefix_slots} slots, KV cache of {plan.prefix_kv_tokens} tokens; both arms ours",
        ),
    ]

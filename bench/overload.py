"""`headrace bench overload`: three times as much as can be done, for two minutes.

Tasks have a deadline, so admission refuses those whose wait it estimates to be too long. Refused clients obey: they
ask again once, after the Retry-After they were told, as long as that ends within the run's patience; the others go
away. The engine is the deterministic one: what is measured is the honesty of what callers are told.
"""

import random
from collections.abc import Callable, Sequence
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
from runtime.chat_template import ModelTokenizer

NAME = "overload"
OVER = 3.0  # of capacity
FLOOR_S = 1.0  # shorter estimates count as this


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    slots: int
    step_s: float
    prompt_tokens: int
    output_tokens: tuple[int, int]  # least, most
    deadline_s: float
    warm_up_s: float
    seconds: float
    patience_s: float  # nobody asks again later than this after the start

    @property
    def capacity(self) -> float:
        """Tasks a second."""
        return self.slots / (sum(self.output_tokens) / 2 * self.step_s)


FULL = Plan(8, 0.02, 32, (32, 96), 20.0, 20, 120, 190)
QUICK = Plan(4, 0.01, 32, (16, 48), 4.0, 8, 12, 20)


def bench(*, quick: bool, engine: str, say: Callable[[str], None]) -> Result:
    """Run the benchmark; the engine is the deterministic one whatever is asked for."""
    plan = QUICK if quick else FULL
    settings = {
        "HEADRACE_MAX_NUM_SEQS": str(plan.slots),
        "HEADRACE_RESERVED_SLOTS": "0",
        "HEADRACE_DETERMINISTIC_STEP_S": str(plan.step_s),
    }
    with ExitStack() as opened:
        say("starting the stack")
        stack = opened.enter_context(Stack("deterministic", settings))
        client = opened.enter_context(Peer("bench.open_client", log=stack.logs / "bench.log"))
        rows_of = opened.enter_context(Rows(stack.environment))
        tokenizer = ModelTokenizer(stack.model_path)
        say("warming up: the model's rate is measured under a backlog")
        warm_up = _run(plan, stack, client, tokenizer, plan.warm_up_s, 1.5, deadline_s=None, patience_s=0.0)
        rows_of.wait([one["task_id"] for one in warm_up if one["task_id"]], 120)
        say(f"{OVER:g} times the capacity of {plan.capacity:.1f} tasks/s for {plan.seconds:g} s")
        answer = _run(
            plan, stack, client, tokenizer, plan.seconds, OVER,
            deadline_s=plan.deadline_s, patience_s=plan.patience_s,
        )  # fmt: skip
        ids = [one["task_id"] for one in answer if one["task_id"]]
        rows_of.wait(ids, 3 * plan.deadline_s + 30)
        lived = {one.id: one for one in rows_of.read(ids)}
    return Result(
        bench=NAME,
        machine=machine.describe(),
        rows=rows(plan, answer, lived),
        arms={"plan": asdict(plan), "submitted": answer, "tasks": [asdict(one) for one in lived.values()]},
    )


def _run(
    plan: Plan, stack: Stack, client: Peer, tokenizer: ModelTokenizer, seconds: float, over: float,
    *, deadline_s: float | None, patience_s: float,
) -> list[dict[str, Any]]:  # fmt: skip
    chance = random.Random(repr(("overload", over)))
    entries = [
        {
            "at_s": at,
            "key": 0,
            "priority": "standard",
            "deadline_s": deadline_s,
            "body": body(
                stack.model,
                chat_messages(tokenizer, plan.prompt_tokens, ("overload", over, number)),
                chance.randint(*plan.output_tokens),
            ),
        }
        for number, at in enumerate(arrivals(over * plan.capacity, seconds, ("overload", over)))
    ]
    address = stack.address
    answer: list[dict[str, Any]] = client.ask(
        host=address["host"],
        port=address["port"],
        keys=[address["key"]],
        arrivals=entries,
        patience_s=patience_s,
    )
    return answer


def rows(plan: Plan, answer: Sequence[dict[str, Any]], lived: dict[str, Lived]) -> list[Row]:
    """Build the rows. Raises: ValueError when a refusal was none of ours."""
    strange = {one["status"] for one in answer} - {202, 429, 503}
    if strange:
        raise ValueError(f"answers other than 202, 429 and 503: {sorted(strange)}")
    accepted = [one for one in answer if one["status"] == 202]
    ratios = [
        lived[one["task_id"]].waited_s / max(one["estimated_wait_s"], FLOOR_S)
        for one in accepted
        if one["estimated_wait_s"] is not None and lived[one["task_id"]].started is not None
    ]
    expired = sum(one.state != "completed" for one in lived.values())
    asked_again = [one for one in answer if one["refused"] and (one["status"] == 202 or one["refused"] > 1)]
    longest_s = max((one["told_s"] for one in asked_again), default=0.0)
    refused = [one for one in answer if one["refused"]]
    note = (
        f"deterministic engine, {plan.slots} slots, {OVER:g}× of {plan.capacity:.1f} tasks/s for {plan.seconds:g} s, "
        f"deadline {plan.deadline_s:g} s; p99 of wait ÷ estimate over {len(ratios)} accepted tasks, estimates below "
        f"{FLOOR_S:g} s count as that; {expired} accepted tasks did not complete"
    )
    return [
        row("admitted_wait_p99_over_estimate", [percentile(ratios, 0.99)], "ratio", "≤ 1.5", note),
        row(
            "refused_share", [len(refused) / len(answer)], "share", "", f"of {len(answer)} at their first try"
        ),
        row(
            "retry_after_honest_share",
            [sum(one["status"] == 202 for one in asked_again) / len(asked_again)] if asked_again else [0.0],
            "share",
            "≥ 0.95",
            f"{len(asked_again)} obeyed a Retry-After of up to {longest_s:.0f} s",
        ),
    ]

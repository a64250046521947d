"""A batch of GSM8K prompts through the official client, with everything that works on it killed on the way."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.batches.lines import ended, jsonl, request, results, upload
from tests.chaos.lab import Lab, expected, vllm_lab
from tests.support.waiting import eventually

LIVE = "24"  # so that the cursor, too, is somewhere in the middle when it is hit


def prompts(real_data: Path, count: int) -> list[str]:
    lines = (real_data / "gsm8k_prompts.jsonl").read_text().splitlines()[:count]
    return [json.loads(line)["question"] for line in lines]


def client_of(lab: Lab) -> AsyncOpenAI:
    """The official client, which tries again while the API is away."""
    return AsyncOpenAI(base_url=f"{lab.api_url}/v1", api_key=lab.api_key, max_retries=8)


async def run_killed(lab: Lab, wanted: list[dict[str, Any]], within_s: float) -> tuple[Any, dict[str, Any]]:
    """Run a batch; kill the worker, the API, the control process, and the worker again."""
    async with client_of(lab) as openai:
        batch = await openai.batches.create(
            input_file_id=await upload(openai, jsonl(wanted)),
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )

        async def written(count: int) -> None:
            statement = "SELECT count(*) FROM tasks WHERE state = 'completed'"
            await eventually(
                lambda: lab.query(statement)[0][0] >= count, within_s, f"{count} lines are completed"
            )

        step = len(wanted) // 6
        await written(step)
        await lab.child("w1").kill()
        await lab.start_worker("w1")
        await written(2 * step)
        await lab.child("api").kill()
        await lab.restart_api()
        await written(3 * step)
        await lab.child("control").kill()
        await lab.start_control()
        await written(4 * step)
        await lab.child("w1").kill()
        await lab.start_worker("w1")
        done = await ended(openai, batch.id, within_s)
        assert done.status == "completed", done
        found = await results(openai, done.output_file_id) + await results(openai, done.error_file_id)
    by_id = {line["custom_id"]: line for line in found}
    assert len(found) == len(by_id) == len(wanted)
    assert set(by_id) == {line["custom_id"] for line in wanted}
    return done, by_id


def check_counts(lab: Lab, done: Any, by_id: dict[str, Any]) -> None:
    """Counts are those of the files, tokens those of the lines, the cost that of the ledger."""
    completed = [
        line for line in by_id.values() if line["error"] is None and line["response"]["status_code"] == 200
    ]
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (
        len(by_id),
        len(completed),
        len(by_id) - len(completed),
    )
    usages = [line["response"]["body"]["usage"] for line in completed]
    assert done.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert done.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
    ids = [line["response"]["request_id"] for line in completed]
    costs = lab.query(
        "SELECT task_id, cost_usd_micros FROM ledger_entries WHERE task_id = ANY(:ids)", ids=ids
    )
    assert len(costs) == len(ids)
    assert done.cost_usd_micros == sum(row.cost_usd_micros for row in costs)
    attempts = lab.query("SELECT max(attempt) AS most FROM tasks")[0].most
    assert attempts > 1, "the kills hit running lines"
    assert lab.query("SELECT count(*) FROM tasks")[0][0] == len(by_id), "no line became two tasks"


async def test_a_batch_of_real_prompts_survives_the_death_of_everything_that_works_on_it(
    lab: Lab, real_data: Path
) -> None:
    lab.settings["HEADRACE_BATCH_LIVE_TASKS"] = LIVE
    await lab.child("control").kill()
    await lab.start_control()
    await lab.start_worker("w1")
    wanted = [
        request(lab.model, f"gsm8k-{number}", prompt, max_tokens=20 + number % 20)
        for number, prompt in enumerate(prompts(real_data, 60))
    ]
    done, by_id = await run_killed(lab, wanted, 60)
    check_counts(lab, done, by_id)
    answers = await expected(lab.folder, [line["body"] for line in wanted])
    for line, (text, prompt_tokens, output_tokens) in zip(wanted, answers, strict=True):
        body = by_id[line["custom_id"]]["response"]["body"]
        assert body["choices"][0]["message"]["content"] == text
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (
            prompt_tokens,
            output_tokens,
        )


@pytest.fixture
async def real_lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with vllm_lab(tmp_path, HEADRACE_BATCH_LIVE_TASKS="96", HEADRACE_MAX_NUM_SEQS="64") as lab:
        yield lab


@pytest.mark.vllm
@pytest.mark.full
async def test_300_real_prompts_on_vllm_survive_it_too(real_lab: Lab, real_data: Path) -> None:
    wanted = [
        request(real_lab.model, f"gsm8k-{number}", prompt, max_tokens=64, temperature=0)
        for number, prompt in enumerate(prompts(real_data, 300))
    ]
    done, by_id = await run_killed(real_lab, wanted, 420)
    assert done.request_counts.completed == 300
    check_counts(real_lab, done, by_id)

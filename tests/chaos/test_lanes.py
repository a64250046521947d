"""A worker takes the lanes that it was started with."""

import httpx

from tests.chaos.lab import MODEL, Lab
from tests.support.waiting import eventually


async def test_a_worker_started_for_some_length_classes_leaves_the_others_alone(lab: Lab) -> None:
    await lab.start("w1", "worker", "--model", MODEL, "--lanes", "short,medium", ready="w1 ready.",
                    HEADRACE_WORKER_NAME="w1")  # fmt: skip
    ids = {}
    async with httpx.AsyncClient(
        base_url=lab.api_url, headers={"Authorization": f"Bearer {lab.api_key}"}, timeout=30
    ) as http:
        for name, max_tokens in (("long", 3000), ("medium", 1000), ("short", 5)):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "How much?"}], "stop": [" "]}
            envelope = {"url": "/v1/chat/completions", "body": {**body, "max_tokens": max_tokens}}
            answer = await http.post("/v1/tasks", json=envelope)
            assert answer.status_code == 202, answer.text
            ids[name] = answer.json()["id"]

    def states() -> dict[str, tuple[str, str]]:
        rows = lab.query("SELECT id, state, length_class FROM tasks")
        names = {task_id: name for name, task_id in ids.items()}
        return {names[row.id]: (row.length_class, row.state) for row in rows}

    await eventually(
        lambda: states()["short"][1] == states()["medium"][1] == "completed", 20.0, "short and medium ended"
    )
    assert states()["long"] == ("long", "queued")
    assert lab.query("SELECT length_classes FROM workers")[0].length_classes == "short,medium"
    await lab.start_worker("w2", HEADRACE_LANES="long")
    await eventually(lambda: states()["long"][1] == "completed", 20.0, "long ended elsewhere")


async def test_a_worker_refuses_lanes_that_do_not_exist(lab: Lab) -> None:
    refused = await lab.start(
        "w1", "worker", "--model", MODEL, "--lanes", "short,tiny", ready="headrace worker"
    )
    assert await refused.ended() == 2
    assert "unknown length class 'tiny'; there are short, medium, long" in refused.log()

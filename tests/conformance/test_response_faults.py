"""A background response that loses what works on it."""

import asyncio
from typing import Any

import pytest

from tests.chaos.lab import Lab
from tests.conformance.test_responses import ENDED
from tests.support.sdk import Sdk
from tests.support.waiting import eventually_async


@pytest.mark.shows("responses-worker-killed")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_killed_worker_is_not_seen_in_a_background_response(lab: Lab, kind: Any) -> None:
    await asyncio.gather(lab.start_api(), lab.start_control())
    victim = await lab.start_worker("w1")
    fields: dict[str, Any] = {"input": "Weirs?", "max_output_tokens": 100, "extra_body": {"ignore_eos": True}}
    async with Sdk.of(lab, kind) as sdk:
        response = await sdk.do("responses.create", model=sdk.model, background=True, **fields)
        following = asyncio.create_task(sdk.all("responses.retrieve", response.id, stream=True))

        async def streaming() -> bool:
            (task,) = lab.query("SELECT id FROM tasks")
            with lab.valkey.client(1) as client:
                return int(client.xlen(f"hr:s:{task[0]}")) > 10

        await eventually_async(streaming, 20.0, "the response is streamed")
        await victim.kill()
        await lab.start_worker("w2")

        async def ended() -> bool:
            return (await sdk.do("responses.retrieve", response.id)).status in ENDED

        await eventually_async(ended, 30.0, "the response has ended")
        events = await asyncio.wait_for(following, 30)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events].count("response.in_progress") == 1
        told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        plain = await sdk.do("responses.create", model=sdk.model, **fields)
        stored = await sdk.do("responses.retrieve", response.id)
        assert told == stored.output_text == plain.output_text
        assert [attempt[0] for attempt in lab.query("SELECT attempt FROM tasks ORDER BY id LIMIT 1")] == [2]
        again = await sdk.all("responses.retrieve", response.id, stream=True, starting_after=4)
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events[5:]]


@pytest.mark.shows("responses-worker-killed")
async def test_a_generation_that_begins_anew_is_told_and_ends_whole(lab: Lab) -> None:
    await asyncio.gather(lab.start_api(), lab.start_control())
    victim = await lab.start_worker("w1")
    fields: dict[str, Any] = {"input": "Weirs?", "max_output_tokens": 60, "temperature": 0.7}
    fields["extra_body"] = {
        "ignore_eos": True,
        "seed": 3,
    }  # a seed's random generator is lost with the worker
    async with Sdk.of(lab, "async") as sdk:
        stream = await sdk.do("responses.create", model=sdk.model, background=True, stream=True, **fields)
        events = []
        async for event in stream:
            events.append(event)
            if event.sequence_number == 12:
                await victim.kill()
                await lab.start_worker("w2")
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [item.status for item in done] == ["incomplete"] * 2  # put aside, and cut by its limit
        last = events[-1].response
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (last.status, last.output_text) == ("incomplete", done[1].content[0].text)
        whole = await sdk.all("responses.retrieve", last.id, stream=True)
        assert [event.to_dict() for event in whole] == [event.to_dict() for event in events]

"""The control process hears what the others tell it."""

import asyncio

from redis.asyncio import Redis

from control.listening import listen
from storage.wakes import News, channel
from tests.support.waiting import eventually_async


async def test_it_hears_on_after_a_word_it_does_not_know_and_after_a_broken_connection(
    broker_url: str,
) -> None:
    redis = Redis.from_url(broker_url)
    heard: list[News] = []
    wake = {news: lambda news=news: heard.append(news) for news in News}
    listening = asyncio.create_task(listen(redis, "hr", wake))

    async def tell(word: str, want: list[News]) -> None:
        async def told() -> bool:
            await redis.publish(channel("hr"), word)
            return heard[-len(want) :] == want

        await eventually_async(told, what=f"{word} was heard")

    await tell(News.TASKS, [News.TASKS])
    await redis.publish(channel("hr"), "of a later version")
    await tell(News.BATCHES, [News.BATCHES])
    await redis.client_kill_filter(_type="pubsub")
    await tell(News.TASKS, [News.BATCHES, News.TASKS])
    assert set(heard) == set(News)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await redis.aclose()

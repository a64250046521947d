"""What a process holds open, built from settings in one place."""

from typing import Any

import orjson
from celery import Celery
from pydantic import SecretStr
from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from sqlalchemy import event, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from runtime.settings import Settings
from storage.blobs import Blobs
from storage.broker import make_celery
from storage.credit import Credit
from storage.streams import EventStreams


def open_database(settings: Settings, *, name: str, plan_once: bool = False) -> AsyncEngine:
    """A pool of connections; `name` is what Postgres shows for them. Connects at first use.

    `plan_once`: for statements that take rows by id, whose plan does not depend on which and how many. Postgres
    takes ids in an array for ten, and plans again for one: 1.2 ms a claim, which itself takes 0.6.
    """
    server_settings = {"application_name": f"headrace {name}", "jit": "off"}
    if plan_once:
        server_settings["plan_cache_mode"] = "force_generic_plan"
    url = make_url(settings.database_url.get_secret_value()).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(
        url,
        pool_size=settings.database_pool_size,
        max_overflow=0,
        pool_timeout=10,
        connect_args={
            "timeout": 5,
            "command_timeout": 30,
            "server_settings": server_settings,
        },
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )

    @event.listens_for(engine.sync_engine, "checkout")
    def replace_closed(connection: Any, *_: object) -> None:
        # A restarted server must cost no request. The driver knows at once that the other side closed, so
        # no round trip is spent on asking, as the pool's own pre-ping does at each checkout.
        if connection.driver_connection.is_closed():
            raise DisconnectionError

    return engine


def open_redis(settings: Settings, url: SecretStr | None = None) -> Redis:
    """A client of the server that holds streams and results, or of another. Connects at first use.

    A burst of callers waits for one of its connections; the library's usual pool refuses them.
    """
    pool = BlockingConnectionPool.from_url(
        (url or settings.streams_url).get_secret_value(),
        timeout=10,
        socket_timeout=10,
        socket_connect_timeout=5,
        health_check_interval=10,
        socket_keepalive=True,
        max_connections=64,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=2),
    )
    return Redis.from_pool(pool)


def open_credit(settings: Settings) -> Credit:
    """What may be published at once, for a publishing thread. Connects at first use."""
    redis = BlockingRedis.from_url(
        settings.broker_url.get_secret_value(), socket_timeout=2, socket_connect_timeout=2
    )
    return Credit(redis, settings.key_prefix)


def open_streams(settings: Settings, redis: Redis) -> EventStreams:
    """The event streams on that client."""
    return EventStreams(redis, settings.key_prefix, settings.stream_ttl_s)


def open_blobs(settings: Settings) -> Blobs:
    """The bytes of files. Raises: ImportError, ValueError for a URL that can't be used."""
    return Blobs(settings.files_url)


def open_celery(settings: Settings) -> Celery:
    """The Celery application on the broker."""
    return make_celery(settings.broker_url.get_secret_value(), key_prefix=settings.key_prefix)

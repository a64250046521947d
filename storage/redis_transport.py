"""kombu's Redis transport, with one client a channel.

kombu 5.7 makes a client for every command that is not a BRPOP or a publish in a pipeline: each ack, each message
taken, each event. A client of redis-py loads the table of all commands' reply parsers, which costs more than the
command. A client is stateless beside its pool, so one can serve all commands of a channel.
"""

from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):  # type: ignore[misc]
    """As kombu's."""

    _one: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if (
            self._one is None or self._one.connection_pool is not self.pool
        ):  # a broken connection's pool is left
            self._one = super()._create_client()
        return self._one


class Transport(redis.Transport):  # type: ignore[misc]
    """As kombu's."""

    Channel = Channel

"""One client a channel, and what would make it a wrong one."""

from storage.broker import declare, make_celery


def test_a_channel_makes_one_client_for_all_its_commands(broker_url: str) -> None:
    app = make_celery(broker_url)
    declare(app, ["a.short.batch"])
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is second
            assert first.ping()
        channel._pool = None  # as after a broken connection
        with channel.conn_or_acquire() as third:
            assert third.connection_pool is channel.pool is not first.connection_pool
            assert third.ping()
    app.close()

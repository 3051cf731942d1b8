"""A subscription hears what is published, and which lists are written to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from threading import Event

import pytest
import redis
from redis import exceptions

from celery_delayq.basics.descriptors import Waker
from celery_delayq.queue.subscription import Heard, Identity, Subscription
from examples.private_redis import PrivateRedis
from tests.support import beside, wait_until


def subscription(server: PrivateRedis, *channels: str) -> Subscription:
    it = Subscription(redis.ConnectionPool(port=server.port, protocol=2))
    if channels:
        it.subscribe(*channels)
        assert [it.hear(10) for _ in channels] == [Heard(channel) for channel in channels]
    return it


def test_what_is_published(redis_server: PrivateRedis, client: redis.Redis) -> None:
    with closing(subscription(redis_server, "a", "b")) as it:
        client.publish("a", "one")
        client.publish("b", "two")
        client.publish("c", "three")
        assert [it.hear(10), it.hear(10), it.hear(0)] == [Heard("a", "one"), Heard("b", "two"), None]
        it.unsubscribe("a")
        client.publish("a", "four")
        client.publish("b", "five")
        assert [it.hear(10) or it.hear(10)] == [Heard("b", "five")]


def test_lists_that_another_connection_has_read(redis_server: PrivateRedis, client: redis.Redis) -> None:
    with (
        closing(subscription(redis_server)) as it,
        redis.Redis(port=redis_server.port, protocol=2, single_connection_client=True) as reader,
    ):
        assert isinstance(it.told, Identity)
        reader.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", it.told.client_id)
        assert not reader.exists("q")
        client.lpush("q", "message")
        assert it.hear(10) == Heard("", None, ["q"])
        assert not reader.exists("r")
        client.flushdb()
        assert it.hear(10) == Heard("", None, None)


def test_it_is_woken(redis_server: PrivateRedis) -> None:
    waker = Waker()
    with closing(subscription(redis_server, "a")) as it:
        waker.wake()
        assert it.hear(3600, waker.fileno()) is None


@contextmanager
def busy_channel(client: redis.Redis, channel: str) -> Iterator[None]:
    """One on which somebody speaks all the time."""

    def speak(ended: Event) -> None:
        while not ended.is_set():
            client.publish(channel, "hello")

    with beside(speak):
        wait_until(lambda: client.info("commandstats").get("cmdstat_publish"), "somebody speaks")
        yield


def test_what_comes_while_it_begins() -> None:
    """It is not taken for an answer, and it is heard."""
    with PrivateRedis() as server, server.client() as client, busy_channel(client, "a"):
        client.execute_command("ACL", "SETUSER", "default", "resetchannels", "&a", "&b")
        for _ in range(20):
            with closing(Subscription(redis.ConnectionPool(port=server.port, protocol=2))) as it:
                assert isinstance(it.told, exceptions.NoPermissionError)
                it.subscribe("a")
                it.subscribe("b")
                heard = list(islice(iter(partial(it.hear, 10), Heard("b")), 10_000))
                assert len(heard) < 10_000, "it is subscribed to both"
                assert heard[0] == Heard("a")
                assert set(heard[1:]) | {it.hear(10) for _ in range(20)} == {Heard("a", "hello")}


def test_it_is_lost(redis_server: PrivateRedis, client: redis.Redis) -> None:
    with closing(subscription(redis_server, "a")) as it:
        assert isinstance(it.told, Identity)
        client.client_kill_filter(_id=it.told.client_id)
        with pytest.raises(redis.ConnectionError):
            it.hear(10)

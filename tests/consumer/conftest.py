"""Consumers and watchdogs in this process, on a real server, without kombu and Celery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.held import Redelivery
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.queue import keys
from celery_delayq.queue.connections import new_id
from celery_delayq.queue.keeper import Keeper
from examples.private_redis import PrivateRedis
from tests.soak.proxy import Proxy
from tests.state import oldest_first
from tests.support import wait_until

#: How long watchdogs of tests wait for a consumer that they miss, in seconds.
PATIENCE_S = 1.0

#: How messages are marked here, so that tests see who has put them back.
MARKING = Redelivery(lambda message: message + b" again", lambda message: (message + b" recovered", False))


class Consumers:
    """Makes consumers and their watchdogs, looks into their lists, and ends them."""

    def __init__(self, server: PrivateRedis) -> None:
        self.server = server
        self._stack = ExitStack()
        self._consumers: list[Consumer] = []
        self._watchdogs: dict[str, Watchdog] = {}
        self.client = self._stack.enter_context(server.client())

    def make(
        self,
        *names: str,
        lease_s: float = 30.0,
        redelivery: Redelivery | None = MARKING,
        expires_ms: dict[str, int] | None = None,
        is_here: bool = False,
        port: int | None = None,
        slot_of: Callable[[str], int] = lambda key: 0,
        collects: bool = False,
        **options: Any,
    ) -> Consumer:
        """Return a consumer that has joined these lists and that nobody looks after; it never retries by itself.

        By its id, it could be in any place, unless it `is_here`: so that others judge it by signs.
        """

        def connect() -> redis.Redis:
            return redis.Redis(port=port or self.server.port, retry=Retry(NoBackoff(), 0), **options)

        consumer = Consumer(
            connect,
            lease_s=lease_s,
            redelivery=redelivery,
            expires_ms=expires_ms,
            id=None if is_here else new_id(),
            slot_of=slot_of,
            collects=collects,
        )
        self._consumers.append(consumer)
        for name in names or ("q",):
            consumer.join(name)
        return consumer

    def watch(
        self,
        consumer: Consumer,
        on_lost: Callable[[], None] = lambda: None,
        *,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> Watchdog:
        """Start a watchdog, and wait until the others can see it; takes the options of `Watchdog`."""
        watchdog = Watchdog(consumer, Keeper(consumer.connect), on_lost, patience_s=patience_s, **options)
        self._watchdogs[consumer.id] = watchdog
        watchdog.start()
        wait_until(lambda: self.is_visible(consumer), "its watchdog is subscribed")
        return watchdog

    def start(self, *names: str, patience_s: float = PATIENCE_S, **options: Any) -> Consumer:
        """Return a consumer with a watchdog; takes what `make` takes."""
        consumer = self.make(*names, **options)
        self.watch(consumer, patience_s=patience_s)
        return consumer

    def unwatch(self, consumer: Consumer) -> None:
        """End a consumer's watchdog, as a killed process would: nobody does anything any more."""
        watchdog = self._watchdogs.pop(consumer.id)
        watchdog.stop()
        wait_until(lambda: not watchdog.is_alive(), "its watchdog has ended", 20)

    def is_watched(self, consumer: Consumer) -> bool:
        """Whether its watchdog still runs."""
        return self._watchdogs[consumer.id].is_alive()

    def is_visible(self, consumer: Consumer) -> bool:
        """Whether the others can see that it is alive."""
        channel = keys.alive_channel(consumer.id, consumer.db)
        return bool(self.client.pubsub_numsub(channel)[0][1])

    def wait_until_seen(self, id: str) -> None:
        """Wait until all watchdogs have seen a consumer, so that they notice when it is gone."""
        watchdogs = self._watchdogs.values()
        wait_until(lambda: all(watchdog.knows(id) for watchdog in watchdogs), "all have seen it")

    def publish(self, *messages: bytes, name: str = "q") -> None:
        """Put messages to the back of a broker list, the first comes first."""
        self.client.lpush(name, *messages)

    def waiting(self, name: str = "q") -> list[bytes]:
        """Return the messages in a broker list, the oldest first."""
        return oldest_first(self.client, name)

    def in_flight(self, consumer: Consumer, name: str = "q") -> list[bytes]:
        """Return what the server has in flight for a consumer, the oldest first."""
        return oldest_first(self.client, keys.QueueKeys.of(name).in_flight(consumer.id))

    def score(self, consumer: Consumer, name: str = "q") -> float:
        """Return the end of a consumer's lease, in ms; 0 if there is none."""
        return float(self.client.zscore(keys.QueueKeys.of(name).consumers, consumer.id) or 0)

    def names_of_keys(self) -> set[str]:
        """Return the names of all keys."""
        return {key.decode() for key in self.client.scan_iter()}

    def take(self, consumer: Consumer, *messages: bytes, name: str = "q") -> list[str]:
        """Publish messages and let the consumer fetch and hold them; return their tags."""
        self.publish(*messages, name=name)
        assert consumer.fetch(name, len(messages)) == list(messages)
        return [consumer.hold(name, message) for message in messages]

    def cut_connections(self) -> None:
        """Close all connections but our own and the subscriptions, as the server sees it."""
        self.client.client_kill_filter(_type="normal", skipme=True)

    def stop(self) -> None:
        """End everything."""
        for consumer in self._consumers:
            if consumer.id in self._watchdogs:
                self.unwatch(consumer)
            consumer.disconnect()
        self._stack.close()


def in_another_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in another thread, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    thread.join(20)
    (result,) = results
    return result


def hold_all(consumer: Consumer, messages: Sequence[bytes], name: str = "q") -> list[str]:
    """Hold messages that were fetched; return their tags."""
    return [consumer.hold(name, message) for message in messages]


@pytest.fixture
def consumers(redis_server: PrivateRedis, client: redis.Redis) -> Iterator[Consumers]:
    """Consumers on the session's Redis, which is empty at first."""
    consumers = Consumers(redis_server)
    yield consumers
    consumers.stop()


@pytest.fixture
def proxy(consumers: Consumers) -> Iterator[Proxy]:
    """Through it, a consumer reaches Redis or not."""
    proxy = Proxy(consumers.server.port)
    yield proxy
    consumers.stop()
    proxy.close()


@pytest.fixture
def lasting(durable_server: PrivateRedis) -> Iterator[Consumers]:
    """Consumers on it."""
    consumers = Consumers(durable_server)
    yield consumers
    consumers.stop()

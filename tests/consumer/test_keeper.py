"""A keeper: one thread and two connections for a loop and watchdogs, none of which disturbs another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.queue import keys
from celery_delayq.queue.connections import new_id
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keeper import Keeper
from celery_delayq.transfer.loop import TransferLoop
from celery_delayq.transfer.settings import TransferSettings
from tests.consumer.conftest import Consumers
from tests.state import delivered
from tests.support import wait_until

#: Nothing that takes so long happens in these tests by itself.
NEVER_S = 300.0


class Kept:
    """What one keeper keeps, on a connection with a name."""

    def __init__(self, consumers: Consumers, user: str = "") -> None:
        self._consumers = consumers
        login = {"username": user, "password": "any"} if user else {}
        self.name = f"kept-{new_id()[-12:]}"
        self.connects = 0
        self._options = {"port": consumers.server.port, "client_name": self.name, "retry": None, **login}
        self.keeper = Keeper(self._connect)
        self._to_stop: list[Callable[[], Any]] = []

    def _connect(self) -> redis.Redis:
        self.connects += 1
        return redis.Redis(**self._options)

    def loop(self, *names: str) -> TransferLoop:
        """Start a loop, and wait until it listens."""
        loop = TransferLoop(self.keeper, lambda: names, settings=TransferSettings(interval_s=NEVER_S))
        self._to_stop.append(loop.stop)
        loop.start()
        channels = [keys.QueueKeys.of(name).channel for name in names]
        wait_until(lambda: all(self.hears(channel) for channel in channels), "it listens")
        return loop

    def watchdog(self, consumer: Consumer, on_lost: Callable[[], None] = lambda: None) -> Watchdog:
        """Start a watchdog, and wait until the others can see its consumer."""
        watchdog = Watchdog(consumer, self.keeper, on_lost)
        self._to_stop.append(watchdog.stop)
        watchdog.start()
        wait_until(lambda: self.hears(alive(consumer)), "others can see it")
        return watchdog

    def hears(self, channel: str) -> bool:
        ((_, number),) = self._consumers.client.pubsub_numsub(channel)
        return bool(number)

    def connections(self) -> list[dict[str, Any]]:
        return [line for line in self._consumers.client.client_list() if line["name"] == self.name]

    def stop(self) -> None:
        for stop in self._to_stop:
            stop()
        wait_until(lambda: not self.connections(), "its connections are closed")


def alive(consumer: Consumer) -> str:
    return keys.alive_channel(consumer.id, consumer.db)


@pytest.fixture
def keep(consumers: Consumers) -> Iterator[Callable[..., Kept]]:
    """Makes them, and ends them."""
    made: list[Kept] = []

    def make(user: str = "") -> Kept:
        made.append(Kept(consumers, user))
        return made[-1]

    yield make
    for kept in made:
        kept.stop()


@pytest.fixture
def queue(client: redis.Redis) -> DelayedQueue:
    return DelayedQueue(client, "q")


def renewed(consumers: Consumers, consumer: Consumer) -> None:
    """Wait until its lease is renewed once more."""
    before = consumers.score(consumer)
    wait_until(lambda: consumers.score(consumer) > before, "it is renewed")


def test_all_share_two_connections_and_a_loop_comes_and_goes(
    consumers: Consumers, keep: Callable[..., Kept], queue: DelayedQueue
) -> None:
    kept = keep()
    first, second = (consumers.make(lease_s=1.0) for _ in range(2))
    kept.watchdog(first)
    loop = kept.loop("q")
    kept.watchdog(second)
    queue.offer(b"pay", countdown=0.1)
    wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
    assert [len(kept.connections()), kept.connects] == [2, 1]
    loop.stop()
    assert not loop.is_alive()
    wait_until(lambda: not kept.hears(queue.keys.channel), "nobody listens for due messages")
    renewed(consumers, first)
    renewed(consumers, second)
    kept.loop("q")
    queue.offer(b"again", countdown=0.1)
    wait_until(lambda: delivered(queue) == [b"pay", b"again"], "delivered")
    assert [len(kept.connections()), kept.connects] == [2, 1]


def test_a_closed_consumer_is_gone_for_the_others_and_the_rest_goes_on(
    consumers: Consumers, keep: Callable[..., Kept], queue: DelayedQueue
) -> None:
    kept = keep()
    consumer = consumers.make()
    (running,) = consumers.take(consumer, b"running")
    kept.loop("q")
    watchdog = kept.watchdog(consumer)
    consumer.close(keep=[running])
    assert watchdog.is_alive()
    assert consumer.ack(running)
    wait_until(lambda: not watchdog.is_alive(), "its watchdog is done")
    wait_until(lambda: not kept.hears(alive(consumer)), "others see that it is gone")
    queue.offer(b"pay", countdown=0.1)
    wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
    assert kept.connects == 1


def test_a_lost_lease_disturbs_nobody_else(
    consumers: Consumers, keep: Callable[..., Kept], queue: DelayedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keep()
    lost: list[bool] = []
    consumer, other = (consumers.make(lease_s=1.0) for _ in range(2))
    kept.loop("q")
    watchdog = kept.watchdog(consumer, partial(lost.append, True))
    kept.watchdog(other)
    consumers.client.zadd(keys.QueueKeys.of("q").consumers, {consumer.id: -1.0e15})  # as others who give it up
    wait_until(lambda: lost and not watchdog.is_alive(), "it knows")
    renewed(consumers, other)
    queue.offer(b"pay", countdown=0.1)
    wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
    assert kept.connects == 1
    assert "interrupted" not in caplog.text


def test_what_the_server_refuses_one_of_them_concerns_no_other(
    consumers: Consumers, keep: Callable[..., Kept], queue: DelayedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    admin = consumers.client
    admin.execute_command("ACL", "SETUSER", "kept", "on", "nopass", "~*", "&*", "+@all", "-publish")
    try:
        kept = keep("kept")
        kept.loop("q")
        consumer = consumers.make(lease_s=1.0)
        watchdog = Watchdog(consumer, kept.keeper)
        watchdog.start()
        wait_until(lambda: "Lease renewal" in caplog.text, "the watchdog cannot say hello")
        renewed(consumers, consumer)
        renewed(consumers, consumer)
        queue.offer(b"pay", countdown=0.1)
        wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
        assert kept.connects == 1
        assert "Transfer" not in caplog.text
        watchdog.stop()
    finally:
        admin.execute_command("ACL", "DELUSER", "kept")


def test_a_lost_subscription_interrupts_all_of_them_once(
    consumers: Consumers, keep: Callable[..., Kept], queue: DelayedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """They keep the connection for commands."""
    caplog.set_level("INFO", logger="celery_delayq")
    kept = keep()
    consumer = consumers.make(lease_s=1.0)
    kept.loop("q")
    kept.watchdog(consumer)
    (subscription,) = [line["id"] for line in kept.connections() if int(line["sub"])]
    consumers.client.client_kill_filter(_id=subscription)
    wait_until(lambda: caplog.text.count("connected again") == 2, "both go on")
    queue.offer(b"pay", countdown=0.1)
    wait_until(lambda: delivered(queue) == [b"pay"], "delivered")
    renewed(consumers, consumer)
    assert caplog.text.count("interrupted") == 2
    assert kept.connects == 1


def test_both_the_due_and_what_a_dead_consumer_left_are_moved(consumers: Consumers, keep: Callable[..., Kept]) -> None:
    """In turns: neither waits until the other is done."""
    kept = keep()
    dead, consumer, count = consumers.make(lease_s=0.5), consumers.make(lease_s=1.0), 3000
    consumers.client.lpush(keys.QueueKeys.of("q").in_flight(dead.id), *(b"%d" % number for number in range(count)))
    due = DelayedQueue(consumers.client, "due")
    for number in range(100):
        due.offer(b"%d" % number, countdown=0.02 * number)
    kept.loop("due")
    kept.watchdog(consumer)
    wait_until(lambda: consumers.client.llen("q") == count, "they are put back")
    assert consumers.waiting() == [b"%d recovered" % number for number in range(count)]
    wait_until(lambda: len(delivered(due)) == 100, "all are moved")

"""Options of the transport; users who may not do everything; threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection

from celery_delayq import ConfigurationError
from examples.private_redis import PrivateRedis
from tests.brokers import Server
from tests.fetching.reading import DB, is_set_aside, publish, queue, reader, with_options
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.support import wait_until
from tests.worker_app import PASSWORD, USER

pytestmark = pytest.mark.on_cluster

# -- options


@pytest.mark.parametrize("prefetch", [1, 0])
def test_global_keyprefix(any_broker: Server, prefetch: int) -> None:
    with with_options(any_broker, global_keyprefix="app:") as ours:
        publish(ours, "q", *range(5))
        ours.client.lpush("app:q", b"no message")
        publish(ours, "q", "behind")
        with reader(ours, "q", prefetch=prefetch, ack=False) as it:
            it.drain(1)
            assert in_flight(ours.client) >= 1
            assert ours.client.zcard("delayq:consumers:{app:q}") == 1
            it.messages[0].requeue()
            while len(it.messages) < 7:
                it.acknowledge_all()
                it.wait(0.1)
            it.acknowledge_all()
        assert Counter(map(str, it.bodies)) == {"0": 2, "1": 1, "2": 1, "3": 1, "4": 1, "behind": 1}
        is_set_aside(ours, b"no message", "app:q")


def test_ack_emulation_off_is_as_kombu_has_it(any_broker: Server) -> None:
    with with_options(any_broker, ack_emulation=False) as ours:
        publish(ours, "q", 1, 2, 3)
        message = queue("q")(ours.channel).get()
        assert message.payload == 1
        message.ack()
        with reader(ours, "q", prefetch=1, ack=False) as it:
            it.drain(1)
            assert ours.client.llen("q") == 1
            it.messages[0].ack()
            assert it.drain(2) == [2, 3]
            it.messages[1].ack()
        assert in_flight(ours.client) == 0
        assert list(ours.client.scan_iter("delayq:consumers*")) == []
        assert not ours.client.exists("q", "unacked")


@pytest.mark.parametrize("name", ["lease", "delivery_limit"])
@pytest.mark.parametrize("value", [-1, "30", None, True, float("nan")])
def test_options_are_checked(redis_server: PrivateRedis, name: str, value: Any) -> None:
    options = {name: value}
    with (
        Connection(redis_server.url.replace("redis", "delayq"), transport_options=options) as connection,
        pytest.raises(ConfigurationError, match=name),
    ):
        connection.ensure_connection(max_retries=1)


# -- permissions


@pytest.fixture
def limited(any_redis_server: PrivateRedis) -> Iterator[Broker]:
    """A user who may neither unblock connections nor see channels, on every server."""
    with any_redis_server.client(db=DB) as client:
        client.flushdb()
        rights = ["-client", "+client|id", "+client|setname", "-pubsub"]
        client.execute_command("ACL SETUSER", USER, "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all", *rights)
        url = f"delayq://127.0.0.1:{any_redis_server.port}/{DB}"
        try:
            with Connection(url, userid=USER, password=PASSWORD) as connection:
                yield Broker(connection, client)
        finally:
            client.execute_command("ACL DELUSER", USER)


def test_a_user_who_may_not_unblock_gets_every_message_once(limited: Broker) -> None:
    with reader(limited, "q", prefetch=1) as it:
        it.wait(0.1)
        for number in range(10):
            publish(limited, "q", number, priority=number % 10)
        assert sorted(it.drain(10)) == list(range(10))
        wait_until(lambda: in_flight(limited.client) == 0, "all are acknowledged")
        it.consumer.cancel()
    with reader(limited, "q", prefetch=1) as it:
        publish(limited, "q", "after")
        assert it.drain(1) == ["after"]


def test_a_user_who_may_not_unblock_puts_back_at_the_end(limited: Broker) -> None:
    with reader(limited, "q", prefetch=1, ack=False) as it:
        it.wait(0.1)
        publish(limited, "q", 0, priority=0)
        it.drain(1)
        publish(limited, "q", 1, priority=9)
    with reader(limited, "q") as it:
        assert it.drain(2, timeout=20) == [0, 1]


# -- threads


def test_many_threads_acknowledge_at_the_same_time(ours: Broker) -> None:
    count, threads = 400, 8
    publish(ours, "q", *range(count))
    with reader(ours, "q", prefetch=50, ack=False) as it:
        stop = threading.Event()

        def acknowledge(number: int) -> None:
            at = number
            while at < count and not stop.is_set():
                if at < len(it.messages):
                    it.messages[at].ack()
                    at += threads
                else:
                    time.sleep(0.001)

        pool = [threading.Thread(target=acknowledge, args=(number,)) for number in range(threads)]
        for thread in pool:
            thread.start()
        try:
            assert sorted(it.drain(count, timeout=30)) == list(range(count))
        finally:
            stop.set() if len(it.messages) < count else None
            for thread in pool:
                thread.join()
        wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")
    assert not ours.client.exists("q")

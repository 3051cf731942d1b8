"""Slots: connections that wait for a message."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.transport import slots
from celery_delayq.transport.lists import Lists
from celery_delayq.transport.slots import Slot
from celery_delayq.transport.waits import Waits
from examples.private_redis import PrivateRedis
from tests.support import wait_until


def test_a_master_that_becomes_a_replica_is_a_lost_connection_and_nothing_else() -> None:
    """Celery logs the error with all that led to it, and an error of the server would look like one of ours."""
    with PrivateRedis() as server, server.client() as client, server.client() as waiting:
        slot = Slot(waiting.connection_pool, "q", "q", "in flight")
        slot.arm()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits")
        client.replicaof("127.0.0.1", 1)
        wait_until(lambda: slot.has_reply(0.1), "the server has answered")
        with pytest.raises(redis.ConnectionError, match="UNBLOCKED") as raised:
            slot.read()
        assert raised.value.__cause__ is None
        assert raised.value.__context__ is None
        slot.disconnect()


#: More than fits into the buffers of the system.
_BIG = bytes(50_000_000)


@contextmanager
def half_sent(server: PrivateRedis, client: redis.Redis, name: str) -> Iterator[None]:
    """A server that is suspended as it sends a message to whoever waits for it."""
    client.lpush(name, _BIG)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_half_a_message_holds_up_nobody() -> None:
    with PrivateRedis() as server, server.client() as client, server.client() as waiting:
        slot = Slot(waiting.connection_pool, "q", "q", "in flight")
        slot.arm()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits")
        with half_sent(server, client, "q"):
            for _ in range(3):
                assert not slot.has_reply(0.1), "only half of it is there"
        wait_until(lambda: slot.has_reply(1.0), "all is there")
        assert slot.read() == _BIG
        slot.disconnect()


def test_what_comes_slowly_is_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_OVERDUE_S", 2.0 - slots.BLOCK_S)
    with PrivateRedis() as server, server.client() as client, server.client() as waiting:
        silent, slow = (Slot(waiting.connection_pool, name, name, "in flight") for name in ("silent", "slow"))
        silent.arm()
        slow.arm()
        begins_at = time.monotonic() + 1
        wait_until(lambda: slow.has_reply(0.1) or time.monotonic() > begins_at, "a part of the time has passed")
        with half_sent(server, client, "slow"):
            wait_until(lambda: not slow.has_reply(0.1) and silent.is_overdue(), "the other one is overdue")
            assert not slow.is_overdue()
        for slot in (silent, slow):
            slot.disconnect()


class Nobody:
    """Polls nothing, and takes what comes."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.connection = self.cycle = self
        self.queue_order_strategy = "round_robin"

    def add_slot(self, slot: Any, owner: Any) -> None: ...
    def remove_slot(self, slot: Any) -> None: ...
    def unsettle(self) -> None: ...


def test_nobody_waits_for_the_rest_of_a_message_that_is_not_wanted_any_more() -> None:
    with PrivateRedis() as server, server.client() as client:
        consumer = Consumer(lambda: redis.Redis(port=server.port))
        consumer.join("q")
        it: Any = Nobody(consumer)
        waits = Waits(it, Lists(it, list, lambda name, exc: False), it)
        waits.arm("q", "q")
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits")
        with half_sent(server, client, "q"):
            (slot,) = waits.all
            wait_until(lambda: waits.receive(slot) is None and not slot.can_end, "it has begun")
            waits.end(waits.all, 30)
        assert "cmdstat_client|unblock" not in client.info("commandstats")
        consumer.close()


def test_a_wait_that_has_not_begun_on_the_server_is_ended_when_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that ends it is another one, and may be quicker."""
    arm = Slot.arm
    with PrivateRedis() as server, server.client() as client:
        consumer = Consumer(lambda: redis.Redis(port=server.port))
        consumer.join("q")
        it: Any = Nobody(consumer)
        waits = Waits(it, Lists(it, list, lambda name, exc: False), it)
        with monkeypatch.context() as patch:

            def begin(slot: Slot, wait_s: float = 0) -> bool:
                patch.undo()
                arm(slot)
                return False

            patch.setattr(Slot, "arm", lambda slot: setattr(slot, "is_armed", True))
            patch.setattr(Slot, "has_reply", begin)
            waits.arm("q", "q")
            waits.end(waits.all, 30)
        assert not waits.are_armed
        client.lpush("q", "body")
        assert client.lrange("q", 0, -1) == [b"body"], "nobody waits for it"
        waits.drop_ended(waits.all)
        assert not waits
        consumer.close()
        consumer.disconnect()

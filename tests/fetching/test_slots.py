"""Slots: connections that wait for a message."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
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


def test_half_a_message_holds_up_nobody() -> None:
    with PrivateRedis() as server, server.client() as client, server.client() as waiting:
        slot = Slot(waiting.connection_pool, "q", "q", "in flight")
        slot.arm()
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits")
        message = bytes(50_000_000)  # more than fits into the buffers of the system
        client.lpush("q", message)
        os.kill(server.pid, signal.SIGSTOP)
        for _ in range(3):
            assert not slot.has_reply(0.1), "only half of it is there"
        os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: slot.has_reply(1.0), "all is there")
        assert slot.read() == message
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

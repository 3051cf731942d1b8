"""Slots: connections that wait for a message."""

from __future__ import annotations

import pytest
import redis

from celery_delayq.transport.slots import Slot
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
        assert raised.value.__suppress_context__
        slot.disconnect()

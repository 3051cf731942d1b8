"""Slots: connections that wait for a message."""

from __future__ import annotations

from typing import Any

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


def test_a_wait_that_has_not_begun_on_the_server_is_ended_when_it_has() -> None:
    """The connection that ends it is another one, and may be quicker."""
    answers: list[int] = []

    class Quicker(redis.Redis):
        """Ends the wait before it has begun, at first."""

        def execute_command(self, *args: Any, **options: Any) -> Any:
            answer = super().execute_command(*args, **options)
            if args[0] == "CLIENT UNBLOCK":
                answers.append(answer)
                if len(answers) == 1:
                    slot.arm()
            return answer

    with PrivateRedis() as server, server.client() as client, Quicker(port=server.port) as quicker:
        slot = Slot(client.connection_pool, "q", "q", "in flight")
        slot.unblock(quicker)
        assert (answers[0], answers[-1]) == (0, 1)
        assert slot.read() is None
        client.lpush("q", "body")
        assert client.lrange("q", 0, -1) == [b"body"], "nobody waits for it"
        slot.disconnect()

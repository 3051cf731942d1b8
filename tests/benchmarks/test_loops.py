"""What loops send is counted apart: for messages, and for periodic looks."""

from __future__ import annotations

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.benchmarks.loops import Fleet
from tests.support import wait_until


def test_looks_are_told_from_what_messages_cause() -> None:
    with PrivateRedis() as server, server.client() as client:
        queue = DelayedQueue(client, "celery")
        queue.offer(b"much later", countdown=3600)
        with Fleet(server.port, 3) as fleet:
            queue.offer(b"now", countdown=0)
            wait_until(lambda: fleet.moved == 1, "it is moved")
            wait_until(lambda: fleet.commands.total("message") >= 1, "that was a command")
            for _ in range(2):  # others may look for that message in the first round
                fleet.forget()
                wait_until(lambda: fleet.commands.total("look") >= 6, "all have looked again")
            assert fleet.commands.total("message") == 0

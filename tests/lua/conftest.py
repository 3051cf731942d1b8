"""The scripts, on every server of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_delayq.queue.delayed_queue import DelayedQueue
from examples.private_redis import PrivateRedis


@pytest.fixture
def any_client(any_redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    """A client of each server in turn, which is empty at first."""
    with any_redis_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def queue(any_client: redis.Redis) -> DelayedQueue:
    """A delayed queue on each server in turn."""
    return DelayedQueue(any_client, "q")


@pytest.fixture
def one_queue(client: redis.Redis) -> DelayedQueue:
    """A delayed queue on the preferred server, for what takes long."""
    return DelayedQueue(client, "q")


class Heard:
    """A subscription to one channel; made before what is to be heard."""

    def __init__(self, client: redis.Redis, channel: str) -> None:
        self._client = client
        self._channel = channel
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(channel)
        self._pubsub.get_message(timeout=5)

    def all(self) -> list[bytes]:
        """Return all messages so far, and end the subscription."""
        self._client.publish(self._channel, "end")
        found: list[bytes] = []
        while (message := self._pubsub.get_message(timeout=10)) and message["data"] != b"end":
            found.append(message["data"])
        self._pubsub.close()
        assert message
        return found

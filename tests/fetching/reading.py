"""A consumer of any queues without an event loop, and what is around it."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from kombu import Consumer, Exchange, Queue
from kombu.message import Message
from kombu.serialization import loads

from celery_delayq.queue.dead_letter import NOT_A_MESSAGE
from celery_delayq.queue.dead_letters import DeadLetters
from tests.brokers import Server
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker, broker
from tests.support import wait_until

#: The database of all these tests.
DB = 4


class Reader:
    """A consumer without an event loop, and what it received."""

    def __init__(
        self, channel: Any, *queues: str | Queue, prefetch: int = 0, ack: bool = True, no_ack: bool = False
    ) -> None:
        self.channel = channel
        self.messages: list[Message] = []
        self._ack = ack and not no_ack
        self.consumer = Consumer(
            channel,
            [it if isinstance(it, Queue) else queue(it) for it in queues],
            no_ack=no_ack,
            on_message=self._on_message,
        )
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _on_message(self, message: Message) -> None:
        self.messages.append(message)
        if self._ack:
            message.ack()

    @property
    def bodies(self) -> list[Any]:
        """Everything received so far."""
        return [message.payload for message in self.messages]

    def drain(self, count: int, timeout: float = 10) -> list[Any]:
        """Receive so many messages in all, and return them."""

        def received() -> bool:
            if len(self.messages) < count:
                self.wait(0.1)
            return len(self.messages) >= count

        wait_until(received, f"{count} messages, has {self.bodies}", timeout)
        return self.bodies

    def acknowledge_all(self) -> None:
        """Acknowledge what was neither acknowledged, rejected nor requeued yet."""
        for message in self.messages:
            if not message.acknowledged:
                message.ack()

    def wait(self, timeout: float = 0.3) -> list[Any]:
        """Receive until nothing comes for so many seconds, and return everything received so far."""
        try:
            while True:
                self.channel.connection.client.drain_events(timeout=timeout)
        except TimeoutError:
            return self.bodies


def queue(name: str, **options: Any) -> Queue:
    return Queue(name, Exchange(name, "direct"), routing_key=name, **options)


def publish(ours: Broker, name: str, *bodies: Any, **options: Any) -> None:
    for body in bodies:
        ours.publish(body, to=queue(name), **options)


@contextmanager
def reader(ours: Broker, *names: str, **options: Any) -> Iterator[Reader]:
    """A reader on a connection of its own."""
    with ours.connection.clone() as connection:
        yield Reader(connection.default_channel, *names, **options)


def bodies_on(client: redis.Redis, name: str = "q") -> list[Any]:
    """What is on a broker list, the first to be delivered first."""
    messages = [json.loads(raw) for raw in reversed(client.lrange(name, 0, -1))]
    return [loads(base64.b64decode(m["body"]), m["content-type"], m["content-encoding"]) for m in messages]


def size(ours: Broker, name: str = "q") -> int:
    """How many messages a queue has that were not fetched."""
    return int(ours.channel.queue_declare(name).message_count)


def fetching(client: redis.Redis) -> dict[str, str]:
    """What the server says of the connection that fetches: it wants to be told of changed lists, or has others told."""
    (found,) = [one for one in client.client_list() if "t" in one["flags"]]
    return dict(found)


def told(reader: Reader, client: redis.Redis, *, but: str = "") -> str:
    """Wait until the server tells of changed lists; the id of the connection that it tells, which is another one."""
    found: list[str] = []

    def tells() -> bool:
        reader.wait(0.1)
        them = [one for one in client.client_list() if "t" in one["flags"]]
        found[:] = [one["id"] if one["redir"] == "0" else one["redir"] for one in them]
        return len(found) == 1 and found[0] != but

    wait_until(tells, "the server tells")
    return found[0]


def redelivered(message: Message) -> bool:
    return bool(message.delivery_info.get("redelivered"))


@contextmanager
def with_options(server: Server, **options: Any) -> Iterator[Broker]:
    with broker(server, "delayq", DB, **options) as ours:
        yield ours


def is_set_aside(ours: Broker, raw: bytes, name: str = "q") -> None:
    (letter,) = DeadLetters(ours.client, name)
    assert (letter.reason, letter.message) == (NOT_A_MESSAGE, raw)
    assert abs(letter.at.timestamp() - time.time()) < 60
    assert in_flight(ours.client) == 0


def waits(reader: Reader, client: redis.Redis, connections: int) -> None:
    """Wait until so many connections wait with BLMOVE."""
    wait_until(lambda: reader.wait(0.1) is not None and waiting(client) == connections, f"{connections} wait")


def waiting(client: redis.Redis) -> int:
    """How many connections wait with BLMOVE."""
    return int(client.info("clients")["blocked_clients"])

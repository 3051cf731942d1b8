"""What the tests of publishing share: the same message through kombu's transport and through ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery
from kombu import Connection, Exchange, Producer, Queue

from celery_delayq import DelayedQueue
from celery_delayq.queue.registry import registered
from celery_delayq.transport import register
from examples.private_redis import PrivateRedis
from tests.brokers import Server, url_of
from tests.state import oldest_first

register()

LATER = (datetime.now(timezone.utc) + timedelta(days=1)).replace(microsecond=123000)
EARLIER = LATER - timedelta(days=2)

#: When tasks of `publish` are due, unless they are told otherwise.
SOON = datetime(2040, 1, 1, tzinfo=timezone.utc)

DIRECT = Queue("tasks", Exchange("tasks", "direct"), routing_key="tasks")


def publish(app: Celery, name: str = "note", seconds: float = 0, **options: Any) -> str:
    """Publish a task that is due so long after SOON; return its id."""
    options.setdefault("eta", SOON + timedelta(seconds=seconds))
    task_id: str = app.tasks[name].apply_async(**options).id
    return task_id


def milliseconds(when: datetime) -> int:
    """A time as Redis stores it."""
    return round(when.timestamp() * 1000)


class Broker:
    """One database of a server, with a kombu connection to it."""

    def __init__(self, connection: Connection, client: redis.Redis) -> None:
        self.connection = connection
        self.client = client
        self.channel = connection.default_channel

    def publish(self, body: Any = ((1,), {}, {}), *, to: Any = DIRECT, **options: Any) -> None:
        """Publish a message with the headers of Celery's protocol 2, unless others are given."""
        headers = options.pop("headers", None)
        if headers is None:
            headers = {"task": "note", "id": "the-id", "eta": options.pop("eta", None)}
        queues = [to] if isinstance(to, Queue) else to
        for queue in queues:
            queue(self.channel).declare()
        options.setdefault("exchange", queues[0].exchange)
        options.setdefault("routing_key", queues[0].routing_key)
        Producer(self.channel).publish(body, headers=headers, **options)

    def lists(self) -> dict[str, list[Any]]:
        """All messages on broker lists, decoded, by list."""
        names = [key.decode() for key in self.client.scan_iter(_type="list")]
        return {name: [json.loads(m) for m in self.client.lrange(name, 0, -1)] for name in names}

    def waiting(self, keyprefix: str = "") -> dict[str, list[tuple[int, Any]]]:
        """All delayed messages, decoded, with their due times, by the broker list they wait for."""
        found = {}
        for name in registered(self.client, keyprefix):
            entries = DelayedQueue(self.client, name).peek(1000)
            found[name] = [(entry.score, json.loads(entry.payload)) for entry in entries]
        return found

    def transfer_all(self, keyprefix: str = "") -> None:
        """Let everything be due now."""
        for name in registered(self.client, keyprefix):
            queue = DelayedQueue(self.client, name)
            for entry in queue.peek(1000):
                self.client.zadd(queue.keys.timeout_set, {entry.raw: 1})
            queue.transfer()

    def dump(self) -> dict[str, Any]:
        """The whole database, with delivery tags, which are random, taken out of messages.

        Without what publishers remember for some minutes.
        """
        content: dict[str, Any] = {}
        for key in self.client.scan_iter():
            if key.startswith(b"delayq:published:"):
                continue
            if self.client.type(key) == b"list":
                content[key.decode()] = [anonymous(message) for message in self.client.lrange(key, 0, -1)]
            elif key.endswith(b"delayq:queues"):
                content[key.decode()] = set(self.client.zrange(key, 0, -1))
            else:
                content[key.decode()] = self.client.smembers(key)
        return content


def ready(client: redis.Redis, name: str = "celery") -> list[dict[str, Any]]:
    """The messages on a broker list, the next one first."""
    return [json.loads(message) for message in oldest_first(client, name)]


def stored(client: redis.Redis, without: Sequence[str] = ("delivery_tag",)) -> dict[str, list[dict[str, Any]]]:
    """All messages of a server by list that has any, decoded, without some properties; those that wait first."""
    found = {}
    for name in sorted(registered(client) | {key.decode() for key in client.scan_iter(_type="list")}):
        raw = [entry.payload for entry in DelayedQueue(client, name).peek(1000)] + oldest_first(client, name)
        found[name] = [json.loads(message) for message in raw]
        for message in found[name]:
            for key in without:
                message["properties"].pop(key, None)
    return {name: messages for name, messages in found.items() if messages}


def anonymous(raw: bytes) -> bytes:
    """A stored message, byte for byte, but for its random delivery tag."""
    tag = json.loads(raw)["properties"]["delivery_tag"]
    return raw.replace(tag.encode(), b"<tag>")


def without_what_differs(message: dict[str, Any]) -> dict[str, Any]:
    """A decoded message without its random delivery tag and without our property."""
    kept = {k: v for k, v in message["properties"].items() if k not in ("delivery_tag", "delayq_due")}
    return {**message, "properties": kept}


@contextmanager
def broker(server: Server, scheme: str, db: int, **options: Any) -> Iterator[Broker]:
    """An empty database of the server, reached through the transport of a scheme; for ours, an empty cluster, too."""
    is_one = isinstance(server, PrivateRedis)
    url = url_of(server, db).replace("delayq", scheme)
    with (
        server.client(**({"db": db} if is_one else {})) as client,
        Connection(url, transport_options=options) as connection,
    ):
        client.flushdb()
        yield Broker(connection, client)


@contextmanager
def brokers(server: PrivateRedis, our_server: Server, **options: Any) -> Iterator[tuple[Broker, Broker]]:
    """kombu's broker and ours."""
    with (
        broker(server, "redis", 1, **options) as stock,
        broker(our_server, "delayq", 2, **options) as ours,
    ):
        yield stock, ours

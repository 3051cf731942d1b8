"""Many messages of one task, made as copies of one that Celery made: it would take minutes to publish 100,000."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import load
from celery_delayq.transport.messages import DUE_PROPERTY

#: The list in which the original is published, and that in which a backlog is prepared; no worker consumes them.
_TEMPLATE, _BACKLOG = "template", "backlog"
_PER_PIPELINE = 1_000

#: Publishing takes at most so long: in seconds, and tasks a second.
_AT_LEAST_S, _A_SECOND = 2.0, 4_000


def seconds_to_publish(count: int) -> float:
    """Return how far ahead so many copies have to be due so that none is due before the last is published."""
    return _AT_LEAST_S + count / _A_SECOND


class Copier:
    """Publishes copies of the message of a task, the way the broker of an app would: to the queue, or delayed.

    Args:
        app: an app of `make_app`.
        client: of the app's Redis; in a cluster, of the node of the queue.
        task: its name; its argument is a number.
        queue: the queue; the app's default one if there is none.
    """

    def __init__(self, app: Celery, client: redis.Redis, task: str = "note", queue: str | None = None) -> None:
        self._delays = "delayq" in app.conf.broker_url
        self._queue = DelayedQueue(client, queue or app.conf.task_default_queue)
        beside = f"{{{queue}}}" if queue else ""  # in the hash slot of the queue
        template, self._backlog = f"{beside}{_TEMPLATE}", f"{beside}{_BACKLOG}"
        app.tasks[task].apply_async((0,), queue=template)
        raw: Any = client.rpop(template)
        self._message = json.loads(raw)
        self._message["properties"]["delivery_info"]["routing_key"] = self._queue.name
        _, *self._rest = json.loads(base64.b64decode(self._message["body"]))

    def publish(self, numbers: Iterable[int], *due: float) -> None:
        """Publish a task for each number.

        Args:
            numbers: their arguments.
            due: unix times in seconds: one for all or one for each; none for immediate tasks.
        """
        self._publish(self._queue.name, numbers, due)

    def prepare(self, numbers: Iterable[int]) -> None:
        """Prepare immediate tasks, which workers do not see before `release`."""
        self._publish(self._backlog, numbers, ())

    def release(self) -> None:
        """Let what was prepared be in the queue, all of it in one instant."""
        self._queue.client.rename(self._backlog, self._queue.name)

    def _publish(self, queue: str, numbers: Iterable[int], due: tuple[float, ...]) -> None:
        client = self._queue.client
        client.script_load(load("offer").text)
        if due and self._delays:
            self._queue.register()
        tasks = self._tasks(numbers, due)
        while chunk := list(islice(tasks, _PER_PIPELINE)):
            pipe = client.pipeline(transaction=False)
            for due_ms, message in chunk:
                if due_ms is None or not self._delays:
                    pipe.lpush(queue, json.dumps(message))
                    continue
                message["properties"][DUE_PROPERTY] = due_ms
                call = scripts.offer(
                    self._queue.keys,
                    due_ms=due_ms,
                    message_key=codec.message_key(message["headers"]["id"]),
                    payload=json.dumps(message).encode(),
                    mirrored=False,
                )
                pipe.execute_command(*call.by_digest())
            pipe.execute()

    def _tasks(self, numbers: Iterable[int], due: tuple[float, ...]) -> Iterator[tuple[int | None, dict[str, Any]]]:
        for place, number in enumerate(numbers):
            due_s = due[place if len(due) > 1 else 0] if due else None
            yield None if due_s is None else -int(-due_s * 1000 // 1), self._copy(number, due_s)

    def _copy(self, number: int, due_s: float | None) -> dict[str, Any]:
        task_id = str(uuid.uuid4())
        eta = datetime.fromtimestamp(due_s, timezone.utc).isoformat() if due_s is not None else None
        headers, properties = self._message["headers"], self._message["properties"]
        body = json.dumps([[number], *self._rest]).encode()
        return {
            **self._message,
            "body": base64.b64encode(body).decode(),
            "headers": {**headers, "id": task_id, "root_id": task_id, "argsrepr": f"({number},)", "eta": eta},
            "properties": {**properties, "correlation_id": task_id, "delivery_tag": str(uuid.uuid4())},
        }

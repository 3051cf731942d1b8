"""A Celery task as it waits in Redis, built and read by hand: the counterpart of CeleryMessage.java.

Python has Celery for that; this module shows the format, with the standard library only. docs/redisson.md describes it
field by field.
"""

from __future__ import annotations

import base64
import json
import uuid
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

#: The values of kombu's transport option `priority_steps`, unless the app has set others.
PRIORITY_STEPS = [0, 3, 6, 9]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class CeleryMessage:
    """A call of a task.

    Attributes:
        task: name of the task.
        args: positional arguments, of types that JSON knows.
        kwargs: keyword arguments.
        id: the task id: what `AsyncResult(id)` takes. `DelayQ.cancel(id)` does not find what Java offered.
        eta: when it is due; an aware time, or None if it is for now.
        expires: after that time a worker does not run it; an aware time or None.
        priority: 0 to 9; over Redis, 0 runs first.
    """

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    eta: datetime | None = None
    expires: datetime | None = None
    priority: int = 0

    def list_name(self, queue: str) -> str:
        """Return the Redis list of a Celery queue for this priority, without `global_keyprefix`."""
        step = PRIORITY_STEPS[bisect(PRIORITY_STEPS, self.priority) - 1]
        return f"{queue}\x06\x16{step}" if step else queue

    def cluster_list_name(self, queue: str, keyprefix: str = "") -> str:
        """Return the same on Redis Cluster, where all lists of a queue are in its hash slot.

        Args:
            queue: the Celery queue.
            keyprefix: `global_keyprefix`; it is in what is returned.
        """
        name, suffix = f"{keyprefix}{queue}", self.list_name("")
        _, brace, rest = name.partition("{")
        has_hash_tag = brace and rest.find("}") > 0
        return f"{name}{suffix}" if has_hash_tag or not suffix else f"{keyprefix}{{{name}}}{suffix}"

    def to_json(self, queue: str) -> str:
        """Return the message as kombu stores it, for a Celery queue."""
        embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
        body = json.dumps([list(self.args), dict(self.kwargs), embed]).encode()
        headers = {
            "lang": "py",
            "task": self.task,
            "id": self.id,
            "root_id": self.id,
            "parent_id": None,
            "group": None,
            "eta": _isoformat(self.eta),
            "expires": _isoformat(self.expires),
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": repr(tuple(self.args)),
            "kwargsrepr": repr(dict(self.kwargs)),
            "origin": "by hand",
        }
        properties: dict[str, Any] = {
            "correlation_id": self.id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_tag": str(uuid.uuid4()),
            "body_encoding": "base64",
            "priority": self.priority,
            "delivery_info": {"exchange": "", "routing_key": queue},
        }
        if self.eta is not None:
            properties["delayq_due"] = self.due_ms
        return json.dumps(
            {
                "body": base64.b64encode(body).decode(),
                "content-encoding": "utf-8",
                "content-type": "application/json",
                "headers": headers,
                "properties": properties,
            }
        )

    @property
    def due_ms(self) -> int:
        """When it is due, unix time in ms, rounded up; 0 if it is for now."""
        return -((_EPOCH - self.eta) // timedelta(milliseconds=1)) if self.eta else 0

    @classmethod
    def parse(cls, text: str | bytes) -> CeleryMessage:
        """Read what Celery stored.

        Raises:
            ValueError: no task message of protocol 2 with a JSON body.
        """
        try:
            message = json.loads(text)
            headers, properties = message["headers"], message["properties"]
            if message["content-type"] != "application/json":
                raise ValueError(f"the body is {message['content-type']}")
            body = message["body"]
            args, kwargs, _ = json.loads(
                base64.b64decode(body) if properties.get("body_encoding") == "base64" else body
            )
            return cls(
                task=headers["task"],
                args=args,
                kwargs=kwargs,
                id=headers["id"],
                eta=_time(headers.get("eta")),
                expires=_time(headers.get("expires")),
                priority=properties.get("priority") or 0,
            )
        except (LookupError, TypeError) as exc:
            raise ValueError(f"no Celery task: {exc!r}") from exc


def _isoformat(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(timezone.utc).isoformat()


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)

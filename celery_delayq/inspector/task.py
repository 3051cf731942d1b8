"""ScheduledTask: a waiting message, described by its headers alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.basics.times import to_datetime, to_ms, to_timedelta
from celery_delayq.inspector.broker_lists import BrokerList
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.entry import Entry
from celery_delayq.transport import messages
from celery_delayq.transport.eta import parse_eta

#: Where a task is: it waits until it is due, or is in its queue, and no worker has fetched it.
State = Literal["delayed", "ready"]


@dataclass(frozen=True)
class ScheduledTask:
    """A waiting or a ready task, as it was read from Redis.

    Only `args`, `kwargs` and `body` decode its body, if that is JSON; nothing is unpickled. `args_text` and
    `kwargs_text` show the arguments as Celery wrote them into the headers at publishing (`argsrepr`, `kwargsrepr`):
    shortened. A message that is not a task message, because another program offered it, has no id and no name, but it
    has a due time, a queue and a size. All datetimes are aware, in UTC.

    Attributes:
        id: task id.
        name: name of the task.
        args_text: positional arguments, as text.
        kwargs_text: keyword arguments, as text.
        time_left: time until it is due, by the server's clock when it was read; negative if it is overdue.
        queue: name of its queue.
        priority: priority of the message, or of its broker list if the message has none.
        broker_list: full name of the list that the task will move to, or is in.
        retries: number of retries so far.
        eta: the eta header; None if it is missing or cannot be parsed.
        expires: when it expires; a worker discards it after that.
        root_id: id of the first task of its workflow.
        parent_id: id of the task that called it.
        group_id: id of its group.
        size: size of the message in bytes.
        content_type: how its body is serialized, for example `application/json`.
        headers: all headers, including stamps.
        entry: the stored entry. That of a ready task is the message alone.
        state: `"delayed"` or `"ready"`.
    """

    id: str | None
    name: str | None
    args_text: str | None
    kwargs_text: str | None
    time_left: timedelta = field(compare=False)
    queue: str
    priority: int
    broker_list: str
    retries: int
    eta: datetime | None
    expires: datetime | None
    root_id: str | None
    parent_id: str | None
    group_id: str | None
    size: int
    content_type: str | None
    headers: Mapping[str, Any] = field(hash=False)
    entry: Entry = field(repr=False)
    state: State = "delayed"

    @property
    def due(self) -> datetime:
        """When it is due: aware, in UTC; `datetime.max` if it is due later than that.

        For a ready task that was never delayed, this is when it was read.
        """
        return self.entry.due

    @property
    def is_task(self) -> bool:
        """Whether it is a message of Celery's protocol 2."""
        return self.id is not None and self.name is not None

    @property
    def args(self) -> tuple[Any, ...] | None:
        """Its positional arguments, as a worker gets them; None if the body is not JSON. Decoded at each access."""
        arguments = self._arguments
        return None if arguments is None else tuple(arguments[0])

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """Its keyword arguments, in the same way."""
        arguments = self._arguments
        return None if arguments is None else arguments[1]

    @property
    def body(self) -> Any:
        """Its body in full, if it is JSON, with values that kombu marked as objects still marked; otherwise None."""
        message = messages.decode(self.entry.payload)
        return None if message is None else messages.json_body(message)

    @property
    def _arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        message = messages.decode(self.entry.payload)
        return None if message is None else messages.json_arguments(message)

    @property
    def offered(self) -> datetime | None:
        """When it was offered, by the server's clock; None if it is ready, or another program offered it."""
        offer = OfferId.from_bytes(self.entry.id)
        return None if offer is None else to_datetime(offer.offered_us // 1000)

    @property
    def stamps(self) -> Mapping[str, Any]:
        """Its stamps, by name.

        Source: Celery 5.7 `celery.worker.request.Request.stamps`.
        """
        names, stamps = self.headers.get("stamped_headers"), self.headers.get("stamps")
        if not isinstance(names, list) or not isinstance(stamps, dict):
            return {}
        return {name: stamps.get(name) for name in names if isinstance(name, str)}

    def __repr__(self) -> str:
        return f"<ScheduledTask {self.id!r} {self.name!r} due {self.due.isoformat()} in {self.queue!r}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the message, in JSON types: times in ISO 8601, `time_left` in seconds.

        `args` and `kwargs` are `args_text` and `kwargs_text`.
        """
        texts = {"args": self.args_text, "kwargs": self.kwargs_text}
        return {name: _plain(texts[name] if name in texts else getattr(self, name)) for name in _FIELDS}


#: The fields of a description in JSON types.
_FIELDS = (
    *("id", "name", "args", "kwargs", "due", "time_left", "queue", "priority", "broker_list", "retries", "eta"),
    *("expires", "root_id", "parent_id", "group_id", "size", "content_type", "offered", "headers", "state"),
)


def _plain(value: Any) -> Any:
    """Return the value of a field in JSON types."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else value


def scheduled_task(entry: Entry, broker_list: BrokerList, now_ms: int) -> ScheduledTask:
    """Return the description of an entry; never raises.

    Args:
        entry: the entry.
        broker_list: the list that it waits for.
        now_ms: the server's time at reading, unix time in ms.
    """
    return _task(messages.decode(entry.payload) or {"properties": {}}, entry, broker_list, now_ms, "delayed")


def ready_task(raw: bytes, broker_list: BrokerList, now_ms: int) -> ScheduledTask:
    """Return the description of a message that is in a broker list, see `scheduled_task`; never raises."""
    message = messages.decode(raw) or {"properties": {}}
    due_ms = message["properties"].get(messages.DUE_PROPERTY)
    if type(due_ms) is not int:
        eta = _time(messages.headers_of(message).get("eta"))
        due_ms = now_ms if eta is None else to_ms(eta, "eta")
    return _task(message, Entry(due_ms, raw, b"", raw), broker_list, now_ms, "ready")


def _task(
    message: Mapping[str, Any], entry: Entry, broker_list: BrokerList, now_ms: int, state: State
) -> ScheduledTask:
    headers, properties = messages.headers_of(message), message["properties"]
    priority, retries = properties.get("priority"), headers.get("retries")
    return ScheduledTask(
        id=_text(headers.get("id")),
        name=_text(headers.get("task")),
        args_text=_text(headers.get("argsrepr")),
        kwargs_text=_text(headers.get("kwargsrepr")),
        time_left=to_timedelta(entry.score - now_ms),
        queue=broker_list.queue,
        priority=priority if type(priority) is int else broker_list.priority,
        broker_list=broker_list.name,
        retries=retries if type(retries) is int else 0,
        eta=_time(headers.get("eta")),
        expires=_time(headers.get("expires")),
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
        group_id=_text(headers.get("group")),
        size=len(entry.payload),
        content_type=_text(message.get("content-type")),
        headers=headers,
        entry=entry,
        state=state,
    )


def _text(value: object) -> str | None:
    """Return a header as text: kombu wraps UUIDs and bytes in a dict, and other clients may write anything."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _time(value: object) -> datetime | None:
    try:
        return None if value is None else to_datetime(parse_eta(value, ""))
    except InvalidEta:
        return None

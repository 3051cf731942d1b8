"""MessageTemplate: the parts of a message that it shares with messages of other occurrences and of other entries.

Most of a message depends only on the task and its options. So a template takes these parts from one message that Celery
built, and adds the parts that differ: ids, times and arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from celery.utils import uuid
from kombu.serialization import dumps as serialize
from kombu.serialization import registry
from kombu.utils.json import dumps

from celery_delayq.messages import DUE_PROPERTY
from celery_delayq.publishing.hooks import has_no_hooks
from celery_delayq.schedule.definition import OPTION, Definition
from celery_delayq.transport.capture import Caught

#: Options that allow a template. Any other option may apply to a single message.
_SUITABLE = frozenset(
    {
        *("queue", "exchange", "routing_key", "priority", "serializer", "ignore_result", "shadow"),
        *("time_limit", "soft_time_limit", "headers", "countdown", "expires", OPTION),
    }
)


@dataclass(frozen=True)
class When:
    """The times of a message.

    Attributes:
        due_ms: when the task may run, unix time in ms.
        eta: the same time as text.
        expires: when the message expires; None for never.
    """

    due_ms: int
    eta: datetime
    expires: datetime | None


@dataclass(frozen=True)
class Arguments:
    """The arguments of a task, as its message stores them."""

    body: str
    argsrepr: str
    kwargsrepr: str


class MessageTemplate:
    """Makes messages of one task with the same options.

    Attributes:
        broker_list: destination of the messages.
    """

    def __init__(self, app: Any, channel: Any, definition: Definition, caught: Caught) -> None:
        self.broker_list = caught.broker_list
        self._app = app
        self._channel = channel
        self._task = definition.task
        self._message = caught.message
        self._headers: Mapping[str, Any] = caught.message["headers"]
        self._properties: Mapping[str, Any] = caught.message["properties"]
        self._serializer = registry.type_to_name.get(caught.message["content-type"])
        self._check_arguments = _check_of(app.tasks.get(definition.task))
        #: Arguments of entries without arguments; if there are very many entries, most have none.
        self._no_arguments: Arguments | None = None

    @classmethod
    def of(
        cls,
        app: Any,
        channel: Any,
        definition: Definition,
        given: tuple[Sequence[Any], Mapping[str, Any]],
        when: When,
        caught: Caught,
    ) -> MessageTemplate | None:
        """Return the template of a message that Celery just built, or None if it cannot have a template.

        It has none if a hook looks at each task as it is sent (see `hooks`), or if the template would make a different
        message in its place, whatever the reason.

        Args:
            app: the Celery app.
            channel: a channel of our transport.
            definition: definition of the entry.
            given: the evaluated arguments and keyword arguments.
            when: the times of the message.
            caught: the message.
        """
        task = app.tasks.get(definition.task)
        if not _SUITABLE.issuperset(definition.options) or not has_no_hooks(app, task):
            return None
        template = cls(app, channel, definition, caught)
        properties = template._properties
        if "id" not in template._headers:  # Celery's protocol 1
            return None
        if template._serializer is None or "compression" in template._headers or "delivery_tag" not in properties:
            return None
        made = template._payload(
            template.arguments(*given),
            caught.message_id,
            when,
            str(properties["delivery_tag"]),
            properties.get("expiration"),
        )
        return template if made == caught.payload else None

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments in the form in which a message stores them.

        Raises:
            Exception: like `apply_async`, if the task does not accept them or they cannot be serialized.
        """
        if self._no_arguments is not None and not args and not kwargs:
            return self._no_arguments
        if self._check_arguments is not None:
            self._check_arguments(*args, **kwargs)
        made = self._app.amqp.create_task_message("", self._task, args, kwargs)
        body = serialize(made.body, serializer=self._serializer)[2]
        encoded = self._channel.encode_body(body, self._properties.get("body_encoding"))[0]
        found = Arguments(encoded, made.headers["argsrepr"], made.headers["kwargsrepr"])
        if not args and not kwargs:
            self._no_arguments = found
        return found

    def payload(self, arguments: Arguments, task_id: str, when: When) -> bytes:
        """Return the bytes of a message."""
        expiration = None
        if when.expires is not None:
            left_s = (when.expires - datetime.now(timezone.utc)).total_seconds()
            expiration = str(int(max(left_s, 0) * 1000))
        return self._payload(arguments, task_id, when, uuid(), expiration)

    def _payload(
        self, arguments: Arguments, task_id: str, when: When, delivery_tag: str, expiration: str | None
    ) -> bytes:
        headers = {
            **self._headers,
            "id": task_id,
            "root_id": task_id,
            "eta": when.eta.isoformat(),
            "expires": when.expires and when.expires.isoformat(),
            "argsrepr": arguments.argsrepr,
            "kwargsrepr": arguments.kwargsrepr,
        }
        properties = {
            **self._properties,
            "correlation_id": task_id,
            "delivery_tag": delivery_tag,
            DUE_PROPERTY: when.due_ms,
        }
        if expiration is not None:
            properties["expiration"] = expiration
        message = {**self._message, "body": arguments.body, "headers": headers, "properties": properties}
        stored: bytes = dumps(message).encode()
        return stored


def _check_of(task: Any) -> Any:
    return getattr(task, "__header__", None) if getattr(task, "typing", False) else None

"""TaskTemplate: Celery's work for one task, which serves for others that differ only in time, arguments and id."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from celery.canvas import Signature
from celery.result import AsyncResult

from celery_delayq.publishing.hooks import has_no_hooks, has_no_receivers
from celery_delayq.transport.producer import Producer

#: Options that belong to a single task, and options that mean the same for each task that has them. All other options
#: (for example `link`, `group_id` or `expires`) rule out a template.
_OF_ONE = frozenset({"task_id", "countdown", "eta"})
_OF_ALL = frozenset(
    {
        *("queue", "exchange", "routing_key", "priority", "serializer", "compression"),
        *("ignore_result", "shadow", "time_limit", "soft_time_limit"),
    }
)

#: Headers that `create_task_message` makes for each task. All other headers come from the first task.
_HEADERS = ("id", "eta", "argsrepr", "kwargsrepr")

#: Texts that a route may set in place of the arguments. For the first task they may be right by chance.
_TEXTS = frozenset({"argsrepr", "kwargsrepr"})


class TaskTemplate:
    """Sends tasks like `apply_async()` of their signatures, after a first task that was really sent by `apply_async()`.

    Values that depend only on the task and its options come from the first task: route, queue and its declaration,
    properties and headers. Values of a single task are computed for each task.

    Source: Celery 5.7 `Task.apply_async`, `Celery.send_task` and `AMQP.send_task_message`.
    """

    def __init__(self, signature: Signature, producer: Producer) -> None:
        self._task = _task(signature)
        self._options = _shared(signature)
        self._producer = producer
        self._published = producer.published
        self._headers: dict[str, Any] = self._published["headers"]
        self._parent = self._task.app.current_worker_task
        request = self._parent and self._parent.request
        self._are_roots = not (request and (request.root_id or request.id))
        self._check_arguments = self._task.typing and getattr(self._task, "__header__", None)

    @classmethod
    def after(cls, signature: Signature, task_id: str, producer: Producer) -> TaskTemplate | None:
        """Return the template of a task that was just sent with `apply_async()`, or None if there cannot be a template.

        There is none if a hook looks at each task as it is sent: a signal, an event, a route, or an overridden or
        wrapped method of Celery. There is also none if the template would build a different message for this task than
        the published one, whatever the reason.
        """
        if not (has_no_receivers() and _may_have_template(signature)):
            return None
        published: dict[str, Any] = producer.published
        headers: dict[str, Any] = published.get("headers", {})
        if headers.get("id") != task_id or headers.get("expires") or _TEXTS.intersection(published):
            return None
        template = cls(signature, producer)
        _, made = template._message(signature, task_id)
        return template if _without_time(made) == _without_time(headers) else None

    def has(self, signature: Signature) -> bool:
        """Return whether this task can be sent with the template."""
        return (
            type(signature) is Signature
            and _task(signature) is self._task
            and _are_same(_shared(signature), self._options)
            and has_no_receivers()
        )

    def send(self, signature: Signature, task_id: str, with_result: bool = True) -> AsyncResult | None:
        """Send a task with the template.

        Args:
            signature: signature of the task.
            task_id: id of the task.
            with_result: return its result. If False, this process cannot wait for it, and it has no parent task.

        Raises:
            Exception: the same exceptions as `apply_async()`.
        """
        task, ignore_result = self._task, self._headers["ignore_result"]
        if self._check_arguments:
            self._check_arguments(*(signature.args or ()), **(signature.kwargs or {}))
        body, headers = self._message(signature, task_id)
        # A private method, but `send_task` uses it too: errors become kombu's.
        with self._producer.connection._reraise_as_library_errors():
            if with_result and not ignore_result:
                task.app.backend.on_task_call(self._producer, task_id)
            self._producer.publish(body, **{**self._published, "headers": headers, "correlation_id": task_id})
        if not with_result:
            return None
        result = task.AsyncResult(task_id)
        result.ignored = ignore_result
        if self._parent:
            self._parent.add_trail(result)
        return result

    def _message(self, signature: Signature, task_id: str) -> tuple[Any, dict[str, Any]]:
        """Return the body and the headers of a task."""
        kwargs, options = signature.kwargs, signature.options
        made = self._task.app.amqp.create_task_message(
            task_id,
            self._task.name,
            signature.args,
            kwargs,
            countdown=options.get("countdown"),
            eta=options.get("eta"),
            kwargsrepr=None if kwargs else "{}",  # the same value that Celery would compute
        )
        headers = {**self._headers, **{name: made.headers[name] for name in _HEADERS}}
        if self._are_roots:
            headers["root_id"] = task_id
        return made.body, headers


def _without_time(headers: dict[str, Any]) -> dict[str, Any]:
    """Return headers that say only whether there is an eta, because a countdown starts anew for each message."""
    return {**headers, "eta": bool(headers["eta"])}


def key_of(signature: Signature) -> Hashable:
    """Return the key that the tasks of one template share. Other tasks may share it too; see `TaskTemplate.has`."""
    shared = _shared(signature).items()
    return signature.task, frozenset((name, value if _is_plain(value) else id(value)) for name, value in shared)


def _task(signature: Signature) -> Any:
    """Return the task of a signature; None if only its name is known."""
    try:
        return signature.type
    except KeyError:
        return None


def _shared(signature: Signature) -> dict[str, Any]:
    """Return the options of a signature that all tasks of a template share."""
    return {name: value for name, value in signature.options.items() if name not in _OF_ONE}


def _are_same(options: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether options are the same. Equality is not enough: 1 == True, and queues may differ in bindings."""
    return options.keys() == others.keys() and all(_is_same(options[name], others[name]) for name in options)


def _is_same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and _is_plain(value) and value == other)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float))


def _may_have_template(signature: Signature) -> bool:
    """Return whether no hook looks at each task."""
    task = _task(signature)
    if task is None or type(signature) is not Signature or not _OF_ALL.issuperset(_shared(signature)):
        return False
    return has_no_hooks(task.app, task, signature.apply_async)

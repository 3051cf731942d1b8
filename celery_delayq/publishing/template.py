"""TaskTemplate: Celery's work for one task, which serves for others that differ only in times, arguments and id."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from celery.canvas import Signature
from celery.result import AsyncResult

from celery_delayq.publishing.hooks import has_no_hooks, has_no_receivers
from celery_delayq.transport.producer import Producer

#: Options that mean the same for each task that has them. All other options (for example `link` or `group_id`) rule out
#: a template, except those that belong to a single task: its id and its times.
OF_ALL = frozenset(
    {
        *("queue", "exchange", "routing_key", "priority", "serializer", "compression"),
        *("ignore_result", "shadow", "time_limit", "soft_time_limit"),
    }
)
_OF_ONE = frozenset({"task_id", "countdown", "eta"})

#: Headers that show the arguments. A route may set them; for the first task they may be right by chance.
TEXTS = ("argsrepr", "kwargsrepr")

#: Headers that `create_task_message` makes for each task. All other headers come from the first task.
_HEADERS = ("id", "eta", *TEXTS)


class TaskTemplate:
    """Makes the body and the headers of tasks like `apply_async()`, after a first task that Celery has made.

    Args:
        app: the Celery app.
        name: name of the task.
        headers: the headers of the first task.

    Source: Celery 5.7 `Task.apply_async`, `Celery.send_task` and `AMQP.send_task_message`.
    """

    def __init__(self, app: Any, name: str, headers: Mapping[str, Any]) -> None:
        self._app = app
        self._name = name
        self._headers = headers
        task = app.tasks.get(name)
        self._check_arguments = getattr(task, "typing", False) and getattr(task, "__header__", None)
        self._parent = app.current_worker_task
        request = self._parent and self._parent.request
        self._are_roots = not (request and (request.root_id or request.id))

    def make(
        self, task_id: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, **times: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the body and the headers of a task.

        Args:
            task_id: its id.
            args: its arguments.
            kwargs: its keyword arguments.
            times: `countdown` and `eta`, as Celery knows them.

        Raises:
            Exception: the same exceptions as `apply_async()`.
        """
        if self._check_arguments:
            self._check_arguments(*(args or ()), **(kwargs or {}))
        made = self._app.amqp.create_task_message(
            task_id,
            self._name,
            args,
            kwargs,
            kwargsrepr=None if kwargs else "{}",  # the same value that Celery would compute
            **times,
        )
        headers = {**self._headers, **{name: made.headers[name] for name in _HEADERS}}
        if self._are_roots:
            headers["root_id"] = task_id
        return made.body, headers


class PublishedTemplate(TaskTemplate):
    """Sends tasks like `apply_async()` of their signatures, after a first task that was really sent by `apply_async()`.

    Route, queue and its declaration, and properties come from the first task, too.
    """

    def __init__(self, signature: Signature, producer: Producer) -> None:
        self._task = _task(signature)
        self._options = _shared(signature)  # as long as it has them, no others have their ids: see `key_of`
        self._producer = producer
        self._published = producer.published
        super().__init__(self._task.app, self._task.name, self._published["headers"])

    @classmethod
    def after(cls, signature: Signature, task_id: str, producer: Producer) -> PublishedTemplate | None:
        """Return the template of a task that was just sent with `apply_async()`, or None if there cannot be a template.

        There is none if a hook looks at each task as it is sent: a signal, an event, a route, or an overridden or
        wrapped method of Celery. There is also none if the template would build a different message for this task than
        the published one, whatever the reason.
        """
        task = _task(signature)
        if task is None or type(signature) is not Signature or not OF_ALL.issuperset(_shared(signature)):
            return None
        if not (has_no_receivers() and has_no_hooks(task.app, task, signature.apply_async)):
            return None
        published: dict[str, Any] = producer.published
        headers: dict[str, Any] = published.get("headers", {})
        if headers.get("id") != task_id or headers.get("expires") or not published.keys().isdisjoint(TEXTS):
            return None
        template = cls(signature, producer)
        _, made = template._message(signature, task_id)
        return template if _without_time(made) == _without_time(headers) else None

    def has(self, signature: Signature) -> bool:
        """Return whether this task, which has the template's key, can be sent with it."""
        return type(signature) is Signature and _task(signature) is self._task and has_no_receivers()

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
        countdown, eta = signature.options.get("countdown"), signature.options.get("eta")
        return self.make(task_id, signature.args, signature.kwargs, countdown=countdown, eta=eta)


def _without_time(headers: dict[str, Any]) -> dict[str, Any]:
    """Return headers that say only whether there is an eta, because a countdown starts anew for each message."""
    return {**headers, "eta": bool(headers["eta"])}


def key_of(signature: Signature) -> Hashable:
    """Return the key that the tasks of one template share: the name, and options that are the same while it is there.

    Equality is not enough: 1 == True, and queues may differ in bindings.
    """
    shared = _shared(signature).items()
    return signature.task, frozenset(
        (name, type(value), value if isinstance(value, (str, int, float)) else id(value)) for name, value in shared
    )


def _task(signature: Signature) -> Any:
    """Return the task of a signature; None if only its name is known."""
    try:
        return signature.type
    except KeyError:
        return None


def _shared(signature: Signature) -> dict[str, Any]:
    """Return the options of a signature that all tasks of a template share."""
    return {name: value for name, value in signature.options.items() if name not in _OF_ONE}

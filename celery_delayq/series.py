"""A series: tasks that differ only in their ids and arguments, so what Celery found out for the first holds for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import celery
from celery import signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router
from celery.canvas import Signature
from celery.result import AsyncResult

from celery_delayq.transport.producer import Producer

#: Options that mean the same for each task of a series, beside its id. All others, such as `link`, `group_id` or
#: `expires`, say something of one task.
_OPTIONS = frozenset(
    {
        *("countdown", "eta", "queue", "exchange", "routing_key", "priority", "serializer", "compression"),
        *("ignore_result", "shadow", "time_limit", "soft_time_limit"),
    }
)

_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)

_CELERY = Path(celery.__file__).parent


class Series:
    """Sends tasks as their signatures' `apply_async()` does, after one that was sent in that way.

    What depends on the task and its options only is taken from the first: route, queue and its declaration, properties
    and headers. What depends on a single task is done for each.

    Source: Celery 5.7 `Task.apply_async`, `Celery.send_task` and `AMQP.send_task_message`; see `may_begin`.

    Args:
        signature: of the first, which was just published.
        producer: by which it was.
    """

    def __init__(self, signature: Signature, producer: Producer) -> None:
        self._task = _task(signature)
        self._options = _options(signature)
        self._producer = producer
        self._published = producer.published
        self._headers: dict[str, Any] = self._published["headers"]
        self._are_roots = self._headers["root_id"] == self._headers["id"]
        self._ignore_result = self._headers["ignore_result"]
        self._check_arguments = self._task.typing and getattr(self._task, "__header__", None)
        self._parent = self._task.app.current_worker_task

    @staticmethod
    def may_begin(signature: Signature) -> bool:
        """Whether others could be sent after this one: nobody looks at each task as it is sent.

        Whoever does, by overriding or wrapping a method of Celery, by a signal, an event or a route, is asked for each.
        """
        task = _task(signature)
        if task is None:
            return False
        app, amqp = task.app, task.app.amqp
        return (
            _OPTIONS.issuperset(_options(signature))
            and type(signature) is Signature
            and type(amqp) is AMQP
            and type(amqp.router) is Router
            and all(isinstance(route, MapRoute) for route in amqp.router.routes)
            and all(map(_is_celerys, (signature.apply_async, task.apply_async, task.shadow_name, app.send_task)))
            and all(map(_is_celerys, (amqp.create_task_message, amqp.send_task_message)))
            and not any(signal.receivers for signal in _SIGNALS)
            and not getattr(task, "_dump_pydantic_arguments", None)
            and not app.conf.task_send_sent_event
            and app.conf.task_protocol == 2
        )

    def has(self, signature: Signature) -> bool:
        """Whether this task can be sent with the series."""
        return type(signature) is Signature and _task(signature) is self._task and _options(signature) == self._options

    def send(self, signature: Signature, task_id: str) -> AsyncResult:
        """Send a task that the series has.

        Raises:
            Exception: as `apply_async()` does.
        """
        task, app, args, kwargs = self._task, self._task.app, signature.args, signature.kwargs
        if self._check_arguments:
            self._check_arguments(*args, **kwargs)
        made = app.amqp.create_task_message(
            task_id,
            task.name,
            args,
            kwargs,
            countdown=self._options.get("countdown"),
            kwargsrepr=None if kwargs else "{}",  # as Celery has it, without asking how long it may be
        )
        headers = {
            **self._headers,
            "id": task_id,
            "argsrepr": made.headers["argsrepr"],
            "kwargsrepr": made.headers["kwargsrepr"],
        }
        if made.headers["eta"]:
            headers["eta"] = made.headers["eta"]
        if self._are_roots:
            headers["root_id"] = task_id
        if not self._ignore_result:
            app.backend.on_task_call(self._producer, task_id)
        self._producer.publish(made.body, **{**self._published, "headers": headers, "correlation_id": task_id})
        result = task.AsyncResult(task_id)
        result.ignored = self._ignore_result
        if self._parent:
            self._parent.add_trail(result)
        return result


def _task(signature: Signature) -> Any:
    """Return the task of a signature; None if it is known by name only."""
    try:
        return signature.type
    except KeyError:
        return None


def _options(signature: Signature) -> dict[str, Any]:
    """Return the options of a signature, without the task's id."""
    return {name: value for name, value in signature.options.items() if name != "task_id"}


def _is_celerys(function: Any) -> bool:
    """Whether a function or method is Celery's own: neither overridden nor wrapped."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and not hasattr(function, "__wrapped__") and _CELERY in Path(code.co_filename).parents

"""Hooks: code that looks at each task as it is sent. Without hooks, Celery's work for one task serves for others.

A hook is a signal receiver, an event, a route that is a function, or an overridden or wrapped method of Celery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router

_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


def has_no_receivers() -> bool:
    """Return whether no signal receiver is called for each published task."""
    return not any(signal.receivers for signal in _SIGNALS)


def has_no_hooks(app: Any, task: Any, *methods: Callable[..., Any]) -> bool:
    """Return whether no hook looks at each task of this kind.

    Args:
        app: the Celery app.
        task: the task; None if the app does not have it.
        methods: further methods that are called for each task.
    """
    amqp = app.amqp
    send_task = getattr(app.send_task, "of_celery", app.send_task)
    asked = (*methods, send_task, amqp.router.route, amqp.create_task_message, amqp.send_task_message)
    if task is not None:
        asked += (task.apply_async, task.shadow_name, task._get_exec_options)
    return (
        type(amqp) is AMQP
        and type(amqp.router) is Router
        and all(type(route) is MapRoute for route in amqp.router.routes)
        and all(map(_is_celerys, asked))
        and not getattr(task, "_dump_pydantic_arguments", None)
        and not (getattr(task, "unique", None) or getattr(task, "throttle", None))
        and not app.conf.task_send_sent_event
        and not app.conf.task_always_eager
    )


def _is_celerys(function: Any) -> bool:
    """Return whether a function or method is Celery's own: neither overridden nor wrapped."""
    return str(getattr(function, "__module__", "")).startswith("celery.") and not hasattr(function, "__wrapped__")

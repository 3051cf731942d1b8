"""Who looks at each task as it is sent. Where nobody does, what Celery found out for one task holds for others.

Somebody does by a signal, an event or a route that is a function, or by overriding or wrapping a method of Celery.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import celery
from celery import signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute, Router

_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)

_CELERY = str(Path(celery.__file__).parent)


def nobody_listens() -> bool:
    """Return whether no receiver of a signal hears of each task that is published."""
    return not any(signal.receivers for signal in _SIGNALS)


def nobody_is_asked(app: Any, task: Any, *methods: Callable[..., Any]) -> bool:
    """Return whether Celery asks nobody who could want to see each task of a kind.

    Args:
        app: the Celery app.
        task: the task; None if the app does not have it.
        methods: further methods that are called for each.
    """
    amqp = app.amqp
    asked = (*methods, app.send_task, amqp.router.route, amqp.create_task_message, amqp.send_task_message)
    if task is not None:
        asked += (task.apply_async, task.shadow_name, task._get_exec_options)
    return (
        type(amqp) is AMQP
        and type(amqp.router) is Router
        and all(type(route) is MapRoute for route in amqp.router.routes)
        and all(map(_is_celerys, asked))
        and not getattr(task, "_dump_pydantic_arguments", None)
        and not app.conf.task_send_sent_event
        and not app.conf.task_always_eager
    )


def _is_celerys(function: Any) -> bool:
    """Return whether a function or method is Celery's own: neither overridden nor wrapped."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and not hasattr(function, "__wrapped__") and _is_in_celery(code.co_filename)


@cache
def _is_in_celery(filename: str) -> bool:
    return Path(filename).is_relative_to(_CELERY)

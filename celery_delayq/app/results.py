"""Tasks as callers of `DelayQ` name them: one or several, by ids or results; and what comes before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def before(ask: Callable[[list[str]], dict[str, T]], result: Any) -> list[T]:
    """Ask for what comes before a task in its chain or chord; return the answers for the nearest that is there."""
    found: list[T] = []
    while not found and (result := getattr(result, "parent", None)) is not None:
        header = getattr(result, "results", ())
        answers = ask([one.id for one in header or [result] if not hasattr(one, "results")])
        found = [answer for answer in answers.values() if answer]
        # Whatever has become of one task of a header, the others count, too.
        for one in header:
            if not answers.get(one.id):
                found += before(ask, one)
    return found


def is_one(task_id: object) -> bool:
    """Return whether an argument names one task, or is wrong, rather than several."""
    from celery.result import AsyncResult

    if isinstance(task_id, (str, bytes, AsyncResult, Mapping)) or not isinstance(task_id, Iterable):
        return True
    return callable(task_id)  # a task


def id_of(task_id: object) -> str:
    """Return the id of a task.

    Raises:
        TypeError: it is named by none of its id, its result and what `get` or `scheduled` returned.
    """
    from celery.result import AsyncResult

    from celery_delayq.inspector.task import ScheduledTask

    task_id = task_id.id if isinstance(task_id, (AsyncResult, ScheduledTask)) else task_id
    if not isinstance(task_id, str):
        raise TypeError(f"a task must be given by its id or its result, not by {task_id!r}")
    return task_id

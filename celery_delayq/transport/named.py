"""Tasks as people name them: by the task itself, its name, or a signature of it."""

from __future__ import annotations

import difflib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_delayq.basics.errors import UnknownTask

if TYPE_CHECKING:  # Celery imports them when they are used first
    from celery.app.task import Task
    from celery.canvas import Signature

#: Names a task: the task, its name, or a signature of it.
Named: TypeAlias = "str | Task | Signature"

#: How much of the last part of a name, at least, is the same in a name that was meant.
_ALIKE = 0.75


def name_of(task: object) -> str:
    """Return the name of a task, of which all calls are meant.

    Raises:
        TypeError: it is neither a name nor a task nor a signature.
        ValueError: it is a signature with arguments, which would be ignored.
    """
    name, signature = called(task)
    if signature.get("args") or signature.get("kwargs"):
        raise ValueError(f"task stands for all calls of {name}: give it without the arguments of {task!r}")
    return name


def called(task: object) -> tuple[str, dict[str, Any]]:
    """Return the name of a task, and its signature, which is empty unless it is named by one.

    Raises:
        TypeError: it is neither a name nor a task nor a signature.
    """
    signature = task if isinstance(task, dict) else {}  # as Celery's are
    name = task if isinstance(task, str) else signature.get("task") or getattr(task, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"task must be a task, its name or a signature, not {task!r}")
    return name, signature


def check_known(app: Any, task: object) -> None:
    """Check a name for which nothing was found. It passes if it is that of a task of the app, or like none of them.

    A program may well ask for tasks of other programs. And a task or a signature is what its author means: it passes.

    Raises:
        UnknownTask: the app has no task of this name, but one with a similar name.
    """
    if not isinstance(task, str) or task in app.tasks or not similar(app, task):
        return
    with suppress(Exception):  # of any module of the app
        app.loader.import_default_modules()  # as a worker does: other tasks may be imported later
    if task not in app.tasks:
        near = similar(app, task)
        raise UnknownTask(f"unknown task {task!r}: did you mean {' or '.join(map(repr, near))}?", near)


def similar(app: Any, task: str) -> tuple[str, ...]:
    """Return the names of tasks that may have been meant: misspelt at the end, or without their modules, or both."""
    names = sorted(name for name in app.tasks if not name.startswith("celery."))
    near = [name for name in difflib.get_close_matches(task, names) if _alike(name, task)]
    if near:
        return tuple(near)
    parts = task.count(".") + 1
    ends = {name: ".".join(name.split(".")[-parts:]) for name in names}
    alike = difflib.get_close_matches(task, set(ends.values()), cutoff=_ALIKE)
    return tuple([name for end in alike for name in names if ends[name] == end and _alike(name, task)][:3])


def _alike(name: str, task: str) -> bool:
    """Return whether the last parts are alike: the names of a module's tasks all begin in the same way."""
    ends = name.rpartition(".")[2], task.rpartition(".")[2]
    return difflib.SequenceMatcher(None, *ends).ratio() >= _ALIKE

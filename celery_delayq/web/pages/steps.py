"""The steps of a change: a question that names what will change; for many, chunk after chunk, with its progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_delayq.web.request import Params, Response
from celery_delayq.web.view import View

#: Actions without a question.
_AT_ONCE = ("schedule.add", "schedule.update", "schedule.pause", "schedule.resume")

#: How many tasks one request changes at most.
CHUNK = 1000


@dataclass(frozen=True)
class Question:
    """What is asked before a change.

    Attributes:
        action: name of the action, see `access.ACTIONS`.
        title: what will be done: "Cancel 3 tasks".
        button: label of the button that does it.
        back: relative URL of the page to go back to.
        names: what will change, a line each.
        notes: sentences.
        fields: fields of the form besides `action` and `confirmed`.
        wants_time: whether to ask for a new time.
        error: what was wrong with the last answer.
        is_final: whether it cannot be undone.
        is_void: whether there is nothing left to change, so that only the way back is offered.
    """

    action: str
    title: Any
    button: Any
    back: Any
    names: Sequence[Any] = ()
    notes: Sequence[Any] = ()
    fields: Iterable[tuple[str, str]] = ()
    wants_time: bool = False
    error: str | None = None
    is_final: bool = False
    is_void: bool = False


def is_confirmed(form: Params) -> bool:
    """Return whether a form answers the question."""
    return form.get("confirmed") == "yes"


def may_have_changed(form: Params) -> bool:
    """Return whether a form asked for a change, and not only for the question."""
    return is_confirmed(form) or form.get("action") in _AT_ONCE


def ask(view: View, question: Question) -> Response:
    """Return the page with the question."""
    return view.page(
        "confirm.html", 400 if question.error else 200, question=question, when=view.request.form.get("when")
    )


@dataclass(frozen=True)
class Progress:
    """How far a change of many is.

    Attributes:
        title: what was done so far.
        back: relative URL of the page to go back to.
        examined: how many were looked at.
        total: how many there were to look at.
        fields: fields of the next request; None if all is done.
        lost: what was left out because nodes of a cluster are away, in words.
    """

    title: Any
    back: Any
    examined: int
    total: int
    fields: Mapping[str, object] | None
    lost: str = ""


def so_far(form: Params, name: str) -> int:
    """Return a number that the last chunk has handed on; 0 if there is none."""
    text = form.get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def show_progress(view: View, progress: Progress) -> Response:
    """Return the page with the progress. The script sends its form by itself; without one, the user does."""
    return view.page("progress.html", progress=progress)

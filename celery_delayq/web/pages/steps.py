"""The steps of a change: a question that names what will change; for many, chunk after chunk, with its progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery_delayq.inspector.bulk import Chunk
from celery_delayq.web.access import Refusal
from celery_delayq.web.audit import Change
from celery_delayq.web.rendering import MOST_CHARACTERS, cut
from celery_delayq.web.request import Params, Response
from celery_delayq.web.view import View

#: Actions without a question.
_AT_ONCE = ("queue.pause", "queue.resume", "schedule.pause", "schedule.resume")

#: How many tasks one request changes at most.
CHUNK = 1000

#: The most ids that a question and an answer name.
NAMED = 100


def is_confirmed(form: Params) -> bool:
    """Return whether a form answers the question."""
    return form.get("confirmed") == "yes"


def is_about_all(form: Params) -> bool:
    """Return whether a form is about all that match, and not about those that it names."""
    return form.get("scope") == "matching"


def may_have_changed(form: Params) -> bool:
    """Return whether a form asked for a change, and not only for the question."""
    return bool(form.get("confirmed")) or form.get("action") in _AT_ONCE


@contextmanager
def values_of_request() -> Iterator[None]:
    """Refuse a request if a value in it is wrong. The site has a sentence of its own for text that is not UTF-8.

    Raises:
        Refusal: in place of a ValueError.
    """
    try:
        yield
    except UnicodeEncodeError:
        raise
    except ValueError as exc:
        raise Refusal(400, str(exc)) from exc


def ask(
    view: View,
    back: str,
    *,
    number: int = 1,
    name: str = "",
    names: Sequence[Any] = (),
    notes: Sequence[Any] = (),
    fields: Sequence[tuple[str, object]] = (),
    error: Any = None,
    may_be_more: bool = False,
    is_void: bool = False,
    ready_too: Any = None,
) -> Response:
    """Return the page that asks whether to do the action of a form; `actions.html` has its title and its button.

    Args:
        view: the request.
        back: relative URL of the page to go back to.
        number: how many will change.
        name: name of the periodic task that the action is about.
        names: what will change, a line each; only the first ones are shown.
        notes: sentences.
        fields: fields of the form besides `action` and `confirmed`.
        error: what was wrong with the last answer.
        may_be_more: whether more than `number` may change.
        is_void: whether there is nothing left to change, so that only the way back is offered.
        ready_too: what the user may choose, to cancel tasks that are in their queues, too; None if that is no choice.
    """
    return view.page(
        "confirm.html",
        400 if error else 200,
        action=view.request.form.get("action"),
        when=view.request.form.get("when"),
        back=back,
        number=number,
        name=name,
        names=names[:NAMED],
        notes=notes,
        fields=fields,
        error=error,
        may_be_more=may_be_more,
        is_void=is_void,
        ready_too=ready_too,
    )


def done_with(view: View, what: str, answers: Mapping[str, bool]) -> dict[str, object]:
    """Record what was done with those that a form names, and return it for `actions.html`.

    Args:
        view: the request.
        what: what the log says of them.
        answers: ids, and whether each was changed.
    """
    action, changed = view.request.form.get("action"), sum(answers.values())
    missed = len(answers) - changed
    view.audit(Change(action, what, changed, missed))
    results = [(cut(one), was_changed) for one, was_changed in answers.items()]
    return {"action": action, "changed": changed, "missed": missed, "refused": 0, "results": results}


def did_you_mean(view: View, near: Sequence[str]) -> Any:
    """Return the hint that a name is probably misspelt; empty if no name is similar."""
    return view._("Did you mean %(names)s?", names=cut(", ".join(near), 200)) if near else ""


def so_far(form: Params, name: str) -> int:
    """Return a number that the last chunk has handed on; 0 if there is none."""
    text = form.get(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def show_progress(view: View, what: str, chunk: Chunk, total: int, back: str, **more: object) -> Response:
    """Record a chunk of a change of many, and return the page with the progress.

    The script sends its form by itself; without one, the user does.

    Args:
        view: the request.
        what: what the log says of them.
        chunk: what was done.
        total: how many there were to look at.
        back: relative URL of the page to go back to.
        more: further fields of the next request.
    """
    form = view.request.form
    view.audit(Change(form.get("action"), what, chunk.changed, chunk.late + chunk.refused))
    numbers = {
        "changed": chunk.changed,
        "missed": chunk.late,
        "refused": chunk.refused,
        "examined": chunk.examined,
    }
    done = {name: so_far(form, name) + number for name, number in numbers.items()}
    return view.page(
        "progress.html",
        done={"action": form.get("action"), **done},
        back=back,
        cursor=chunk.cursor,
        total=max(total, done["examined"]),
        lost=form.get("lost") or cut(chunk.lost, MOST_CHARACTERS),
        more=more,
    )

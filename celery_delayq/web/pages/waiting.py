"""Waiting: a list of waiting tasks in due order, and what can be done with some of them or with all that match."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from celery_delayq.inspector import Inspector, pages
from celery_delayq.inspector.bulk import Action, change_some
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.web.access import Refusal
from celery_delayq.web.pages.filters import LONGEST_ID, Filter, InvalidFilter, id_key, ids_of, time_of
from celery_delayq.web.pages.steps import (
    CHUNK,
    Progress,
    Question,
    ask,
    is_confirmed,
    show_progress,
    so_far,
)
from celery_delayq.web.rendering import MOST_CHARACTERS, cut
from celery_delayq.web.request import Response, encoded
from celery_delayq.web.view import Page, View

#: Tasks on a page.
_LIMIT = 50

#: How long the count before a change may take, in seconds. Then it says how far it has looked.
_COUNT_S = 0.15

#: The most ids that a question and an answer name.
_NAMED = 100

#: How many tasks a question holds in memory at once. Each may have megabytes.
_HELD = 25

#: The most names of tasks and of queues that the filter proposes.
_PROPOSED = 200


def _show(view: View, message: Any = None, results: Sequence[tuple[str, bool]] = ()) -> Response:
    """Show the tasks that match the filter in the URL.

    Args:
        view: the request.
        message: what was done.
        results: ids, and whether each was changed.
    """
    query = view.request.query
    with view.broker.inspector() as inspector:
        found, error, page, total = None, None, None, 0
        try:
            found = Filter.of(query, inspector.lists.now_ms())
            page = pages.page(
                inspector.lists, found.criteria, limit=_LIMIT, cursor=query.get("cursor") or None, partial=True
            )
            total = pages.to_examine(inspector.lists, found.criteria)
        except InvalidFilter as exc:
            error = exc.said(view._)
        except ValueError as exc:  # the cursor
            raise Refusal(400, str(exc)) from exc
        queues = inspector.queues()
    return view.page(
        "waiting.html",
        400 if error else 200,
        filter=query,
        params=found.params if found else {},
        is_search=bool(found and found.is_search),
        error=error,
        # A page without tasks is false, but it may have a cursor, or name queues that are away.
        tasks=page.tasks if page is not None else (),
        examined=page.examined if page is not None else 0,
        cursor=page.cursor if page is not None else None,
        lost=page.lost if page is not None else None,
        total=total,
        queues=queues[:_PROPOSED],
        task_names=_task_names(view),
        id_key=id_key,
        longest_id=LONGEST_ID,
        message=message,
        results=results,
        is_live=not message and not error,
    )


def _task_names(view: View) -> list[str]:
    names = sorted(name for name in view.broker.app.tasks if not name.startswith("celery."))
    return names[:_PROPOSED]


def _act(view: View, action: Action) -> Response:
    return _act_on_matching(view, action) if view.request.form.get("scope") == "matching" else _act_on_ids(view, action)


def _cancel(view: View) -> Response:
    return _act(view, "cancel")


def _reschedule(view: View) -> Response:
    return _act(view, "reschedule")


def _run_now(view: View) -> Response:
    return _act(view, "run_now")


PAGE = Page("/waiting", _show, {"cancel": _cancel, "reschedule": _reschedule, "run_now": _run_now})


# -- some tasks


def _act_on_ids(view: View, action: Action) -> Response:
    form = view.request.form
    ids = ids_of(form.all("id"))
    if len(ids) > CHUNK:
        raise Refusal(400, "At most 1,000 tasks can be selected at once.")
    if not is_confirmed(form):
        return _ask_about_ids(view, action, ids)
    eta = None
    with view.broker.inspector() as inspector:
        if action == "cancel":
            answers = inspector.cancel(ids)
        elif action == "run_now":
            answers = inspector.run_now(ids)
        else:
            try:
                eta = time_of(form.get("when").strip(), inspector.lists.now_ms())
                answers = inspector.reschedule(ids, eta=eta)
            except InvalidFilter as exc:
                return _ask_about_ids(view, action, ids, exc.said(view._))
            except ValueError as exc:
                return _ask_about_ids(view, action, ids, str(exc))
    changed = sum(answers.values())
    what = ", ".join(ids)
    view.audit.record(action, what if eta is None else f"{what} to {eta.isoformat()}", changed, len(ids) - changed)
    return _show(
        view, _done(view, action, changed, len(ids) - changed), [(cut(i), done) for i, done in answers.items()]
    )


def _ask_about_ids(view: View, action: Action, ids: Sequence[str], error: Any = None) -> Response:
    waiting = {}
    with view.broker.inspector() as inspector:
        for start in range(0, len(ids), _HELD):
            tasks = inspector.get(ids[start : start + _HELD])
            waiting.update({task_id: _line(task) for task_id, task in tasks.items() if task is not None})
    notes = []
    if len(waiting) < len(ids):
        gone = len(ids) - len(waiting)
        notes.append(
            view.language.ngettext("%(number)s is no longer waiting.", "%(number)s are no longer waiting.", gone)
        )
    return ask(
        view,
        Question(
            action,
            _title(view, action, len(waiting)),
            _button(view, action),
            _back(view),
            list(waiting.values())[:_NAMED],
            notes,
            [("id", id_key(task_id)) for task_id in ids],
            wants_time=action == "reschedule",
            error=error,
            is_final=action == "cancel",
            is_void=not waiting,
        ),
    )


def _line(task: ScheduledTask) -> str:
    return cut(f"{task.id}  {task.name or ''}  {task.args or ''} {task.kwargs or ''}", 200)


# -- all tasks that match


def _act_on_matching(view: View, action: Action) -> Response:
    form = view.request.form
    with view.broker.inspector() as inspector:
        # The filter means the same in each step, also if its times are relative.
        now_ms = inspector.lists.now_ms()
        asked_ms = so_far(form, "asked") or now_ms
        try:
            found = Filter.of(view.request.query, asked_ms)
        except InvalidFilter as exc:
            raise Refusal(400, str(exc)) from exc
        if not is_confirmed(form):
            return _ask_about_matching(view, inspector, action, found, asked_ms)
        eta = None
        if action == "reschedule":
            try:
                eta = time_of(form.get("eta") or form.get("when").strip(), now_ms)
            except InvalidFilter as exc:
                return _ask_about_matching(view, inspector, action, found, asked_ms, exc.said(view._))
        total = so_far(form, "total") or pages.to_examine(inspector.lists, found.criteria)
        try:
            chunk = change_some(
                inspector.lists, action, found.criteria, eta=eta, limit=CHUNK, cursor=form.get("cursor") or None
            )
        except ValueError as exc:
            raise Refusal(400, str(exc)) from exc
    what = f"all that match {encoded(found.params) or 'everything'}"
    what = what if eta is None else f"{what} to {eta.isoformat()}"
    view.audit.record(action, what, chunk.changed, chunk.late + chunk.refused)
    changed, missed = so_far(form, "changed") + chunk.changed, so_far(form, "missed") + chunk.late
    refused = so_far(form, "refused") + chunk.refused
    examined = so_far(form, "examined") + chunk.examined
    lost = form.get("lost") or cut(chunk.lost, MOST_CHARACTERS)
    rest = None
    if chunk.cursor is not None:
        rest = {
            "action": action,
            "scope": "matching",
            "confirmed": "yes",
            "asked": asked_ms,
            "cursor": chunk.cursor,
            "total": total,
            "changed": changed,
            "missed": missed,
            "refused": refused,
            "examined": examined,
            "eta": eta.isoformat() if eta else "",
            "lost": lost,
        }
    title = _done(view, action, changed, missed, refused)
    progress = Progress(title, _back(view), examined, max(total, examined), rest, lost)
    return show_progress(view, progress)


def _ask_about_matching(
    view: View, inspector: Inspector, action: Action, found: Filter, asked_ms: int, error: Any = None
) -> Response:
    count, examined, total, is_all = _count(inspector, found)
    notes = [view._("Tasks that are published in the meantime may be among them.")]
    if not is_all:
        notes.insert(
            0,
            view._(
                "Looked at %(examined)s of %(total)s tasks so far: there may be more that match.",
                examined=f"{examined:,}",
                total=f"{total:,}",
            ),
        )
    title = _title(view, action, count)
    return ask(
        view,
        Question(
            action,
            title if is_all else view._("%(title)s or more", title=title),
            _button(view, action),
            _back(view),
            _named(view, found) or [view._("All waiting tasks of all queues")],
            notes,
            [("scope", "matching"), ("asked", str(asked_ms))],
            wants_time=action == "reschedule",
            error=error,
            is_final=action == "cancel",
        ),
    )


def _count(inspector: Inspector, found: Filter) -> tuple[int, int, int, bool]:
    """Return how many tasks match, how many were looked at, how many there are, and whether all were looked at."""
    total = pages.to_examine(inspector.lists, found.criteria)
    if not found.is_search:
        return total, total, total, True
    deadline = time.monotonic() + _COUNT_S
    count, examined, cursor = 0, 0, None
    while True:
        page = pages.page(inspector.lists, found.criteria, limit=1000, cursor=cursor, partial=True)
        count, examined, cursor = count + len(page), examined + page.examined, page.cursor
        if cursor is None or time.monotonic() >= deadline:
            return count, examined, max(total, examined), cursor is None


# -- words


def _back(view: View) -> str:
    query = encoded({name: value for name, value in view.request.query if name != "cursor"})
    return f"waiting?{query}" if query else "waiting"


def _named(view: View, found: Filter) -> list[Any]:
    """Return the fields of a filter as the form names them, with their values."""
    labels = {
        "queue": view._("Queue"),
        "task": view._("Task"),
        "due_after": view._("Due from"),
        "due_before": view._("Due before"),
        "text": view._("Text in arguments"),
    }
    return [
        view._("%(field)s: %(value)s", field=labels[name], value=cut(value, 200))
        for name, value in found.params.items()
    ]


def _title(view: View, action: str, number: int) -> Any:
    ngettext = view.language.ngettext
    if action == "cancel":
        return ngettext("Cancel %(number)s task", "Cancel %(number)s tasks", number)
    if action == "reschedule":
        return ngettext("Reschedule %(number)s task", "Reschedule %(number)s tasks", number)
    return ngettext("Run %(number)s task now", "Run %(number)s tasks now", number)


def _button(view: View, action: str) -> Any:
    return {
        "cancel": view._("Cancel for good"),
        "reschedule": view._("Reschedule"),
        "run_now": view._("Run now"),
    }[action]


def _done(view: View, action: str, changed: int, missed: int, refused: int = 0) -> Any:
    ngettext = view.language.ngettext
    if action == "cancel":
        done = ngettext("%(number)s task cancelled.", "%(number)s tasks cancelled.", changed)
    elif action == "reschedule":
        done = ngettext("%(number)s task rescheduled.", "%(number)s tasks rescheduled.", changed)
    else:
        done = ngettext("%(number)s task sent to its queue.", "%(number)s tasks sent to their queues.", changed)
    if missed:
        gone = ngettext(
            "%(number)s was already delivered, or cancelled.",
            "%(number)s were already delivered, or cancelled.",
            missed,
        )
        done = view._("%(done)s %(late)s", done=done, late=gone)
    if refused:
        foreign = ngettext(
            "%(number)s is of another program and cannot be rescheduled.",
            "%(number)s are of another program and cannot be rescheduled.",
            refused,
        )
        done = view._("%(done)s %(late)s", done=done, late=foreign)
    return done

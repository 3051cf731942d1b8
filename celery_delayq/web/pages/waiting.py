"""Waiting: waiting tasks in due order, or ready ones; what can be done with some of them, or all that match."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from celery_delayq.basics.errors import UnknownQueue, UnknownTask
from celery_delayq.inspector import Inspector, pages
from celery_delayq.inspector.bulk import Action, change_some
from celery_delayq.inspector.pages import Criteria
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.transport.named import check_known
from celery_delayq.web.access import Refusal
from celery_delayq.web.broker import PROPOSED
from celery_delayq.web.pages.filters import (
    LONGEST_ID,
    InvalidFilter,
    criteria_of,
    fields_of,
    id_key,
    ids_of,
    time_of,
)
from celery_delayq.web.pages.steps import (
    CHUNK,
    ask,
    did_you_mean,
    done_with,
    is_about_all,
    is_confirmed,
    show_progress,
    so_far,
    values_of_request,
)
from celery_delayq.web.rendering import cut
from celery_delayq.web.request import Response, encoded
from celery_delayq.web.view import Page, View

#: Tasks on a page.
_LIMIT = 50

#: How long the count before a change may take, in seconds. Then it says how far it has looked.
_COUNT_S = 0.15

#: How many tasks a question holds in memory at once. Each may have megabytes.
_HELD = 25


def _show(view: View, done: Mapping[str, object] | None = None) -> Response:
    """Show the tasks that match the filter in the URL.

    Args:
        view: the request.
        done: what was done, see `steps.done_with`.
    """
    query = view.request.query
    fields = fields_of(query)
    criteria, error, page, total = Criteria(), None, None, 0
    with view.broker.inspector() as inspector, values_of_request():  # the cursor may be wrong
        lists = inspector.lists
        try:
            criteria = criteria_of(fields, lists.now_ms())
            page = pages.page(lists, criteria, limit=_LIMIT, cursor=query.get("cursor") or None, partial=True)
            total = pages.to_examine(lists, criteria)
        except InvalidFilter as exc:
            error = exc.said(view._)
        queues = inspector.queues()
        is_empty = page is not None and not (page.tasks or page.cursor or page.lost or query.get("cursor"))
        hint = _hint(view, inspector, fields) if is_empty else None
    return view.page(
        "waiting.html",
        400 if error else 200,
        filter=query,
        params=fields,
        is_ready=_is_ready(view),
        is_search=criteria.is_search,
        error=error,
        hint=hint,
        # A page without tasks is false, but it may have a cursor, or name queues that are away.
        tasks=page.tasks if page is not None else (),
        examined=page.examined if page is not None else 0,
        cursor=page.cursor if page is not None else None,
        lost=page.lost if page is not None else None,
        total=total,
        queues=queues[:PROPOSED],
        task_names=view.broker.task_names(),
        id_key=id_key,
        longest_id=LONGEST_ID,
        message=done,
        is_live=not done and not error,
    )


def _is_ready(view: View) -> bool:
    return view.request.query.get("state") == "ready"


def _hint(view: View, inspector: Inspector, fields: Mapping[str, str]) -> Any:
    """Return that a name of the filter is probably misspelt; None if not. Nothing was found for it."""
    part = fields.get("task", "")
    try:
        inspector.check_queue(fields.get("queue"))
        if not any(part in name for name in view.broker.app.tasks):
            check_known(view.broker.app, part)
    except UnknownQueue as exc:
        return did_you_mean(view, exc.near) or view._("There is no such queue.")
    except UnknownTask as exc:
        return did_you_mean(view, exc.near)
    return None


def _act(view: View) -> Response:
    action = cast("Action", view.request.form.get("action"))
    return _act_on_matching(view, action) if is_about_all(view.request.form) else _act_on_ids(view, action)


PAGE = Page("/waiting", _show, dict.fromkeys(("cancel", "reschedule", "run_now"), _act))


# -- some tasks


def _act_on_ids(view: View, action: Action) -> Response:
    form = view.request.form
    ids = ids_of(form.all("id"))
    if len(ids) > CHUNK:
        raise Refusal(400, "At most 1,000 tasks can be selected at once.")
    if not is_confirmed(form):
        return _ask_about_ids(view, ids)
    what = ", ".join(ids)
    with view.broker.inspector() as inspector:
        if action == "cancel":
            answers = inspector.cancel(ids, ready=_is_ready(view) or form.get("ready") == "yes")
        elif action == "run_now":
            answers = inspector.run_now(ids)
        else:
            try:
                eta = time_of(form.get("when").strip(), inspector.lists.now_ms())
                answers = inspector.reschedule(ids, eta=eta)
            except InvalidFilter as exc:
                return _ask_about_ids(view, ids, exc.said(view._))
            except ValueError as exc:
                return _ask_about_ids(view, ids, str(exc))
            what = f"{what} to {eta.isoformat()}"
    return _show(view, done_with(view, what, answers))


def _ask_about_ids(view: View, ids: Sequence[str], error: Any = None) -> Response:
    lines: list[str] = []
    with view.broker.inspector() as inspector:
        for start in range(0, len(ids), _HELD):
            found = inspector.get(ids[start : start + _HELD], ready=_is_ready(view))
            lines += map(_line, filter(None, found.values()))
    gone = len(ids) - len(lines)
    ngettext = view.language.ngettext
    note = ngettext("%(number)s is no longer waiting.", "%(number)s are no longer waiting.", gone)
    return ask(
        view,
        _back(view),
        number=len(lines),
        names=lines,
        notes=[note] if gone else (),
        fields=[("id", id_key(task_id)) for task_id in ids],
        error=error,
        is_void=not lines,
        ready_too=view._("Even if it is in its queue by then, as long as no worker has it")
        if _may_be_ready(view)
        else None,
    )


def _may_be_ready(view: View) -> bool:
    """Return whether an action on waiting tasks can also reach those that are in their queues."""
    return view.request.form.get("action") == "cancel" and not _is_ready(view)


def _line(task: ScheduledTask) -> str:
    return cut(f"{task.id}  {task.name or ''}  {task.args_text or ''} {task.kwargs_text or ''}", 200)


# -- all tasks that match


def _act_on_matching(view: View, action: Action) -> Response:
    form = view.request.form
    fields = fields_of(view.request.query)
    with view.broker.inspector() as inspector, values_of_request():
        lists = inspector.lists
        # The filter means the same in each step, also if its times are relative.
        now_ms = lists.now_ms()
        asked_ms = so_far(form, "asked") or now_ms
        criteria = criteria_of(fields, asked_ms)
        if not is_confirmed(form):
            return _ask_about_matching(view, inspector, criteria, asked_ms)
        eta = None
        if action == "reschedule":
            try:
                eta = time_of(form.get("eta") or form.get("when").strip(), now_ms)
            except InvalidFilter as exc:
                return _ask_about_matching(view, inspector, criteria, asked_ms, exc.said(view._))
        # Whether those in the queues come after the waiting ones, and whether it is their turn.
        ready = form.get("ready") if _may_be_ready(view) else ""
        in_queues = replace(criteria, state="ready")
        total = so_far(form, "total") or sum(
            pages.to_examine(lists, each) for each in ((criteria, in_queues) if ready else (criteria,))
        )
        if ready == "now":
            criteria = in_queues
        chunk = change_some(lists, action, criteria, eta=eta, limit=CHUNK, cursor=form.get("cursor") or None)
        if ready == "yes" and chunk.cursor is None:
            chunk, ready = replace(chunk, cursor=""), "now"
    what = f"all that match {encoded(fields) or 'everything'}"
    if eta:
        what = f"{what} to {eta.isoformat()}"
    if ready:
        what = f"{what}, in queues, too"
    more = {"asked": asked_ms, "eta": eta.isoformat() if eta else "", "ready": ready}
    return show_progress(view, what, chunk, total, _back(view), **more)


def _ask_about_matching(
    view: View, inspector: Inspector, criteria: Criteria, asked_ms: int, error: Any = None
) -> Response:
    count, examined, total, is_all = _count(inspector, criteria)
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
    return ask(
        view,
        _back(view),
        number=count,
        names=_named(view) or [view._("All waiting tasks of all queues")],
        notes=notes,
        fields=[("scope", "matching"), ("asked", asked_ms)],
        error=error,
        may_be_more=not is_all,
        ready_too=view._("Also those that are in their queues, as long as no worker has them")
        if _may_be_ready(view)
        else None,
    )


def _count(inspector: Inspector, criteria: Criteria) -> tuple[int, int, int, bool]:
    """Return how many tasks match, how many were looked at, how many there are, and whether all were looked at."""
    total = pages.to_examine(inspector.lists, criteria)
    if not criteria.is_search:
        return total, total, total, True
    deadline = time.monotonic() + _COUNT_S
    count, examined, cursor = 0, 0, None
    while True:
        page = pages.page(inspector.lists, criteria, limit=1000, cursor=cursor, partial=True)
        count, examined, cursor = count + len(page), examined + page.examined, page.cursor
        if cursor is None or time.monotonic() >= deadline:
            return count, examined, max(total, examined), cursor is None


def _back(view: View) -> str:
    query = encoded({name: value for name, value in view.request.query if name != "cursor"})
    return f"waiting?{query}" if query else "waiting"


def _named(view: View) -> list[Any]:
    """Return the fields of the filter as the form names them, with their values."""
    labels = {
        "state": view._("State"),
        "queue": view._("Queue"),
        "task": view._("Task contains"),
        "due_after": view._("Due from"),
        "due_before": view._("Due before"),
        "text": view._("Text in arguments"),
    }
    return [
        view._("%(field)s: %(value)s", field=labels[name], value=cut(value, 200))
        for name, value in fields_of(view.request.query).items()
    ]

"""Periodic tasks: the list, and the form that adds one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from celery_delayq.basics.errors import DelayqError
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.forecast import runs_if_changed
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.web.audit import Change
from celery_delayq.web.broker import PROPOSED
from celery_delayq.web.pages.entry_form import POLICIES, fields_of, is_seen, mark_of
from celery_delayq.web.request import Params, Response
from celery_delayq.web.view import Page, View

#: The most entries that the list shows.
_MOST = 1000


#: How many runs are foretold.
RUNS = 5


def _show(
    view: View, message: Any = None, error: str | None = None, preview: Mapping[str, Any] | None = None
) -> Response:
    entries = list(view.broker.schedule())
    return view.page(
        "periodic.html",
        400 if error else 200,
        entries=entries[:_MOST],
        number=len(entries),
        **form_values(view, view.request.form, preview),
        keeps=False,
        message=message,
        error=error,
        is_live=not (message or error or preview),
    )


def form_values(view: View, form: Params | None, preview: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what `entry_fields.html` shows."""
    return {
        "form": form,
        "preview": preview,
        "policies": POLICIES,
        "task_names": view.broker.task_names(),
        "queue_names": sorted(view.broker.app.amqp.queues)[:PROPOSED],
    }


def preview_of(view: View, definition: Definition, known: PeriodicTask | None = None) -> dict[str, Any]:
    """Return what is shown of a form before it is saved: the next runs, and the mark that its next request has.

    Raises:
        InvalidSchedule: its schedule cannot tell.
    """
    runs = runs_if_changed(definition, known, time.time_ns() // 1_000_000, RUNS)
    return {"runs": runs, "mark": mark_of(view.request.form)}


def _add(view: View) -> Response:
    form = view.request.form
    name = form.get("name").strip()
    try:
        definition = Definition.of(name, fields_of(form), view.broker.app)
        if not is_seen(form):
            return _show(view, preview=preview_of(view, definition))
        view.broker.schedule().add_definition(definition)
    except DelayqError as exc:
        return _show(view, error=str(exc))
    view.audit(Change("schedule.add", name, 1))
    return _show(view, view._("%(name)s added.", name=name))


PAGE = Page("/periodic", _show, {"schedule.add": _add})

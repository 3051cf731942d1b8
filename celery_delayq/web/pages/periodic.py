"""Periodic tasks: the list, and the form that adds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_delayq.basics.errors import DelayqError
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.encoding import json_of, written
from celery_delayq.web.audit import Change
from celery_delayq.web.request import Params, Response
from celery_delayq.web.view import Page, View

#: Fields of the form that are JSON, and what each must be.
_JSON: Mapping[str, type] = {"args": list, "kwargs": dict, "options": dict, "timing": dict}

#: The most entries that the list shows.
_MOST = 1000


def _show(view: View, message: Any = None, error: str | None = None) -> Response:
    entries = list(view.broker.schedule())
    return view.page(
        "periodic.html",
        400 if error else 200,
        entries=entries[:_MOST],
        number=len(entries),
        form=view.request.form,
        keeps=False,
        message=message,
        error=error,
        is_live=not message and not error,
    )


def fields_of(form: Params, *, wants_schedule: bool = True) -> dict[str, Any]:
    """Return the fields of an entry that a form has, see `Definition.of`.

    Args:
        form: the form.
        wants_schedule: whether the schedule is one of them.

    Raises:
        InvalidSchedule: one cannot be read. The message says which.
    """
    fields: dict[str, Any] = {"task": form.get("task").strip()}
    if wants_schedule:
        fields["schedule"] = written(form.get("when").strip())
    for name, kind in _JSON.items():
        text = form.get(name).strip()
        fields[name] = json_of(text, kind, name) if text else kind()
    return fields


def _add(view: View) -> Response:
    form = view.request.form
    name = form.get("name").strip()
    try:
        definition = Definition.of(name, fields_of(form), view.broker.app)
        view.broker.schedule().add_definition(definition)
    except DelayqError as exc:
        return _show(view, error=str(exc))
    view.audit(Change("schedule.add", name, 1))
    return _show(view, view._("%(name)s added.", name=name))


PAGE = Page("/periodic", _show, {"schedule.add": _add})

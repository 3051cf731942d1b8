"""Entry: one periodic task: its next runs, its definition, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.basics.errors import DelayqError, InvalidSchedule, UnknownEntry
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.transport.named import similar
from celery_delayq.web.access import Refusal
from celery_delayq.web.audit import Change
from celery_delayq.web.broker import Unavailable
from celery_delayq.web.pages.entry_form import fields_of, form_of, is_seen, keeps_schedule
from celery_delayq.web.pages.periodic import RUNS, form_values, preview_of
from celery_delayq.web.pages.steps import ask, did_you_mean, is_confirmed
from celery_delayq.web.request import Response, encoded
from celery_delayq.web.view import Page, View

#: A longer definition is shown, but not edited here.
_MOST_EDITED = 50_000


class CannotSend(DelayqError):
    """The arguments or options of a periodic task do not fit."""


def _show(
    view: View, message: Any = None, error: str | None = None, preview: Mapping[str, Any] | None = None
) -> Response:
    name = _name(view)
    schedule = view.broker.schedule()
    try:
        entry = schedule.get(name)
    except UnknownEntry as exc:
        raise Refusal(404, "There is no such periodic task.") from exc
    except InvalidSchedule as exc:  # another program wrote it: it can be removed
        entry = PeriodicTask(name, "", None, error=str(exc))
    runs, unknown = [], None
    try:
        runs = schedule.next_runs(name, RUNS)
    except DelayqError as exc:
        unknown = str(exc)
    form = view.request.form if error or preview else form_of(entry)
    return view.page(
        "entry.html",
        400 if error else 200,
        entry=entry,
        runs=runs,
        unknown=unknown,
        hint="" if entry.is_registered else did_you_mean(view, similar(view.broker.app, entry.task)),
        **form_values(view, form, preview),
        can_edit=entry.app is None and form is not None and sum(len(value) for _, value in form) <= _MOST_EDITED,
        keeps=keeps_schedule(entry),
        message=message,
        error=error,
        is_live=not (message or error or preview),
    )


def _name(view: View) -> str:
    name = view.request.query.get("name")
    if not name:
        raise Refusal(400, "The URL names no periodic task.")
    return name


def _ask(view: View, note: Any) -> Response:
    name = _name(view)
    return ask(view, f"entry?{encoded({'name': name})}", name=name, notes=[note])


def _change(view: View, change: Callable[[str], object], done: Any) -> Response:
    """Change an entry, and show it, or the error; or the answer that the change returns because it did nothing yet."""
    name, action = _name(view), view.request.form.get("action")
    try:
        shown = change(name)
    except UnknownEntry as exc:
        raise Refusal(404, "There is no such periodic task.") from exc
    except DelayqError as exc:
        return _show(view, error=str(exc))
    if isinstance(shown, Response):
        return shown
    view.audit(Change(action, name, 1))
    return view.page("removed.html", message=done) if action == "schedule.remove" else _show(view, done)


def _run_now(view: View) -> Response:
    if not is_confirmed(view.request.form):
        return _ask(view, view._("Its task is sent once, in addition to its schedule."))

    def run_now(name: str) -> None:
        try:
            result = view.broker.schedule().run_now(name)
        except (Unavailable, DelayqError):
            raise
        except (RedisError, OperationalError, OSError) as exc:  # the app sends by a connection of its own
            url = view.broker.app.connection_for_write().as_uri()
            raise Unavailable(f"{url}: {str(exc).rstrip('.')}") from exc
        except Exception as exc:  # Celery checks arguments and options: whatever they are, and however it says so
            raise CannotSend(f"Celery cannot send it: {exc}") from exc
        if not getattr(result, "was_new", True):
            raise CannotSend(f"it was not sent: task {result.id} holds its unique key")

    return _change(view, run_now, view._("Sent."))


def _update(view: View) -> Response:
    form, schedule = view.request.form, view.broker.schedule()

    def update(name: str) -> object:
        entry = schedule.get(name)
        fields = fields_of(form, wants_schedule=bool(form.get("when").strip()) or not keeps_schedule(entry))
        if entry.app is None and not is_seen(form):
            definition = Definition.of(name, {"schedule": entry.schedule, **fields}, view.broker.app)
            return _show(view, preview=preview_of(view, definition, entry))
        # Fields that the form does not have any more get their defaults.
        return schedule.update_fields(name, fields, {**dict.fromkeys(entry.timing), **fields.pop("timing")})

    return _change(view, update, view._("Saved."))


def _remove(view: View) -> Response:
    if not is_confirmed(view.request.form):
        return _ask(view, view._("Its next run is cancelled, too."))
    return _change(view, view.broker.schedule().remove, view._("%(name)s removed.", name=_name(view)))


PAGE = Page(
    "/entry",
    _show,
    {
        "schedule.update": _update,
        "schedule.remove": _remove,
        "schedule.pause": lambda view: _change(view, view.broker.schedule().pause, view._("Paused.")),
        "schedule.resume": lambda view: _change(view, view.broker.schedule().resume, view._("Resumed.")),
        "schedule.run_now": _run_now,
    },
)

"""Whether somebody plans the periodic tasks, if there are any."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from celery_delayq.basics.text import plural
from celery_delayq.health.finding import Finding, Level
from celery_delayq.health.servers import Server
from celery_delayq.options.scheduler import is_ours
from celery_delayq.schedule.configured import Configured, configured
from celery_delayq.schedule.records import Record
from celery_delayq.schedule.store import ScheduleStore

_CHECK = "planner"


def configured_here(app: Any) -> Configured | None:
    """Return the periodic tasks in the configuration of an app; None if its scheduler is another one.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    return configured(app) if is_ours(app) else None


def check_planning(
    server: Server, *, store: ScheduleStore, entries: Configured | None, known: Collection[str]
) -> Iterator[Finding]:
    """Yield whether a planner is there, and which entries go nowhere. The server is the one with the periodic tasks.

    Args:
        server: the server.
        store: the schedule, as this server has it.
        entries: what `configured_here` returns.
        known: names of the app's tasks. If all of them are Celery's, no task is missed: there is no app.
    """
    client, keys = server.client, store.keys
    # The empty name counts the changes. Entries of the configuration are recorded when they are planned first.
    recorded = int(client.hlen(keys.definitions)) - int(client.hexists(keys.definitions, ""))
    count = max(recorded, 0 if entries is None else len(entries.entries))
    if entries is not None:
        for name, error in sorted(entries.errors.items()):
            yield Finding(_CHECK, Level.ERROR, f"The periodic task {name!r} is invalid: {error.rstrip('.')}.")
    if not count:
        yield Finding(_CHECK, Level.OK, "There are no periodic tasks of this package.")
        return
    tasks = plural(count, "periodic task")
    planners = int(client.pubsub_numsub(keys.channel)[0][1])
    failed = len(store.errors().keys() - (entries.errors if entries is not None else {}).keys())
    if not planners:
        advice = (
            'Set beat_scheduler = "celery_delayq.beat:Scheduler", and restart the workers.'
            if entries is None
            else "Start a worker: `celery -A ... worker`; or beat: `celery -A ... beat`."
        )
        yield Finding(_CHECK, Level.ERROR, f"Nobody plans {tasks}: no planner is subscribed.", advice)
    elif not failed:
        subscribed = "1 planner is" if planners == 1 else f"{planners} planners are"
        yield Finding(_CHECK, Level.OK, f"{tasks}; {subscribed} subscribed.")
    if failed:
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"{failed} of {tasks} could not be planned.",
            "`celery -A ... delayq schedule list` shows the errors.",
        )
    for name, task in _unknown_tasks(store, entries, known):
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"The periodic task {name!r} sends {task!r}, a task that this app does not have.",
            "Correct its name, import its module, or remove the entry.",
        )


def _unknown_tasks(
    store: ScheduleStore, entries: Configured | None, known: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield name and task of the entries, of this configuration or added at run time, whose task is not known."""
    found = {name: definition.task for name, definition in entries.entries.items()} if entries is not None else {}
    for name, raw in store.records().items():
        with suppress(ValueError):  # it is one of those that could not be planned
            record = Record.parse(raw)
            if record.app is None:
                found[name] = str((record.definition or {}).get("task"))
    has_own = not all(name.startswith("celery.") for name in known)
    yield from sorted((name, task) for name, task in found.items() if has_own and task not in known)

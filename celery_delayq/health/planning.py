"""Whether somebody plans the periodic tasks, if there are any."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from celery_delayq.basics.finding import Finding, error, ok, sentence, warning
from celery_delayq.basics.text import plural
from celery_delayq.health.servers import Server
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.records import Record
from celery_delayq.schedule.store import ScheduleStore


def check_planning(
    server: Server, *, store: ScheduleStore, entries: Configured | None, known: Collection[str]
) -> Iterator[Finding]:
    """Yield whether a planner is there, and which entries go nowhere; nothing if periodic tasks are at another server.

    Args:
        server: the server.
        store: the schedule.
        entries: the periodic tasks in the app's configuration; None if its scheduler is another one.
        known: names of the app's tasks. If all of them are Celery's, no task is missed: there is no app.
    """
    if not server.serves(store.keys.definitions):
        return
    client, keys = server.client, store.keys
    store.client = client
    # The empty name counts the changes. Entries of the configuration are recorded when they are planned first.
    recorded = int(client.hlen(keys.definitions)) - int(client.hexists(keys.definitions, ""))
    count = max(recorded, 0 if entries is None else len(entries.entries))
    invalid = {} if entries is None else entries.errors
    for name, why in sorted(invalid.items()):
        yield error(sentence(f"The periodic task {name!r} is invalid: {why}"))
    if not count:
        yield ok("There are no periodic tasks of this package.")
        return
    tasks = plural(count, "periodic task")
    planners = int(client.pubsub_numsub(keys.channel)[0][1])
    failed = len(store.errors().keys() - invalid.keys())
    if not planners:
        advice = (
            'Set beat_scheduler = "celery_delayq.beat:Scheduler", and restart the workers.'
            if entries is None
            else "Start a worker: `celery -A ... worker`; or beat: `celery -A ... beat`."
        )
        do_not = plural(count, "periodic task does", "periodic tasks do")
        yield error(f"{do_not} not run: no planner is subscribed.", advice)
    elif not failed:
        yield ok(f"{tasks}; {plural(planners, 'planner is', 'planners are')} subscribed.")
    if failed:
        advice = "`celery -A ... delayq schedule list` shows the errors."
        yield warning(f"{failed} of {tasks} could not be planned.", advice)
    for name, task in _unknown_tasks(store, entries, known):
        yield warning(
            f"The periodic task {name!r} sends {task!r}, a task that this app does not have.",
            "Correct its name, import its module, or remove the entry.",
        )


def _unknown_tasks(
    store: ScheduleStore, entries: Configured | None, known: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield name and task of the entries, of this configuration or added at run time, whose task is not known."""
    if all(name.startswith("celery.") for name in known):
        return
    found = {} if entries is None else {name: definition.task for name, definition in entries.entries.items()}
    for name, raw in store.records().items():
        with suppress(ValueError):  # it is one of those that could not be planned
            record = Record.parse(raw)
            if record.app is None:
                found[name] = str((record.definition or {}).get("task"))
    yield from sorted((name, task) for name, task in found.items() if task not in known)

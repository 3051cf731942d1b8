"""Periodic tasks among the load: one of every second with each option, and what became of their occurrences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, get_args

from celery import Celery
from dateutil.parser import isoparse

from celery_delayq.options.unique import For
from tests.ledger import Ledger
from tests.soak.verdict import Harm

#: Name of the entry -> its task, and what else it has.
_ENTRIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "plain": ("occurrence", {}),
    "expires": ("occurrence", {"options": {"expires": 60}}),
    "task expires": ("occurrence, expires", {}),
    "priority": ("occurrence", {"options": {"priority": 6}}),
    "headers": ("occurrence", {"options": {"headers": {"mark": "x"}}}),
    "time limits": ("occurrence", {"options": {"soft_time_limit": 30, "time_limit": 60}}),
    "jitter": ("occurrence", {"jitter": 0.4}),
    "key": ("occurrence", {"options": {"unique": "key"}}),
    **{for_: (f"occurrence, {for_}", {}) for for_ in get_args(For)},
}

#: Name of the entry -> how often it runs, in seconds; the others every second. Its task expires sooner than that.
_EVERY_S = {"task expires": 10.0}

#: What is left out when a key is held is not lost: an occurrence of these may wait for the one before.
_MAY_LEAVE_OUT = {"key", *get_args(For)}


def periodic_conf() -> dict[str, Any]:
    """Return what a worker needs that plans them."""
    return {"beat_scheduler": "celery_delayq.beat:Scheduler"}


def add_entries(app: Celery) -> None:
    """Add the entries at run time."""
    for name, (task, options) in _ENTRIES.items():
        app.delayq.schedule.add(name, task, _EVERY_S.get(name, 1.0), [name], **options)


def remove_entries(app: Celery) -> None:
    """Remove them, with what waits."""
    for name in _ENTRIES:
        app.delayq.schedule.remove(name)


def judge_periodic(ledger: Ledger, harms: Sequence[Harm]) -> list[str]:
    """Return a line for each entry whose occurrences did not run once each, without need."""
    struck = Counter(it.task_id for it in ledger.executions() if any(harm.struck(it) for harm in harms))
    runs: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for run in ledger.runs():
        name, eta = run.note
        runs[name].append((isoparse(eta), run.task_id))
    found = []
    for name in _ENTRIES:
        ran: dict[int, list[str]] = defaultdict(list)
        for eta, task_id in runs[name]:  # jitter is less than half of an interval
            ran[round((eta - min(runs[name])[0]).total_seconds() / _EVERY_S.get(name, 1.0))].append(task_id)
        wanted = max(ran, default=0) + 1
        twice = sum(max(0, len(ids) - 1 - sum(struck[it] for it in set(ids))) for ids in ran.values())
        missing = [] if name in _MAY_LEAVE_OUT and len(ran) > wanted / 2 else sorted(set(range(wanted)) - set(ran))
        if missing or twice:
            found.append(f"periodic, {name}: of {wanted} occurrences, {missing} did not run, and {twice} ran twice")
            found += [f"struck: {harm}" for harm in harms] if missing else []
    return found

"""Forecast: when an entry runs next, as far as its schedule tells."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.basics.text import told
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.occurrences import to_datetime, to_ms
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.schedule.records import Record, State
from celery_delayq.schedule.transitions import changed


def runs_from(definition: Definition, state: State, number: int) -> list[datetime]:
    """Return the next runs from a state on, as far as the schedule tells."""
    if definition.timing.max_runs is not None:
        number = min(number, definition.timing.max_runs - state.runs)
    if definition.is_asked:  # it decides when it is asked
        number = min(number, 1)
    found: list[datetime] = []
    at_ms = state.at_ms
    while at_ms is not None and len(found) < number:
        found.append(to_datetime(at_ms + definition.delay_ms(at_ms)))
        at_ms = definition.times.after(at_ms) if len(found) < number else None
    return found


def runs_if_changed(definition: Definition, known: PeriodicTask | None, now_ms: int, number: int) -> list[datetime]:
    """Return the next runs of an entry that gets this definition now, or is added with it; see `runs_from`.

    Args:
        definition: its new definition.
        known: the entry as it is; None if it is new.
        now_ms: the time, unix time in ms.
        number: how many runs.

    Raises:
        InvalidSchedule: its schedule cannot tell.
    """
    if not definition.timing.enabled:
        return []
    last_ms = to_ms(known.last_run) if known is not None and known.last_run is not None else None
    state = State("", "", None, last_ms=last_ms, runs=known.runs if known is not None else 0)
    try:
        move = changed(Entry(definition, Record(definition.fingerprint, now_ms, None)), state, now_ms)
        return runs_from(definition, replace(state, at_ms=move.at_ms), number)
    except Exception as exc:  # of a schedule that computes its times
        raise InvalidSchedule(f"cannot tell when periodic task {definition.name!r} runs: {told(exc)}") from exc

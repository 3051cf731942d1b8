"""Forecast: when an entry will run, as far as its schedule tells."""

from __future__ import annotations

from datetime import datetime

from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.occurrences import following, to_datetime
from celery_delayq.schedule.records import State


def forecast(definition: Definition, state: State, number: int) -> list[datetime]:
    """Return the next runs, aware, in UTC: the planned one first. Fewer if there are no more, or if nobody knows.

    Args:
        definition: the entry.
        state: what is planned.
        number: how many runs.
    """
    timing = definition.timing
    if timing.max_runs is not None:
        number = min(number, timing.max_runs - state.runs)
    if definition.is_asked:  # it decides when it is asked
        number = min(number, 1)
    found: list[datetime] = []
    at_ms = state.at_ms
    while at_ms is not None and len(found) < number:
        found.append(to_datetime(at_ms + definition.delay_ms(at_ms)))
        at_ms = following(definition.schedule, timing.window, at_ms) if len(found) < number else None
    return found

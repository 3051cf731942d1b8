"""How a stored entry is shown: as far as it can be read, whoever wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.schedule.occurrences import jitter_ms, to_datetime
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.schedule.records import Record, Seen, State

T = 1_800_000_000_000


def shown(state: State | None, **definition: Any) -> PeriodicTask:
    data = {"task": "t", "schedule": {"every": 60}, **definition}
    seen = Seen(state.dump()) if state else Seen()
    return PeriodicTask.of("e", Record("f", T, data), seen, None, {"t"})


def test_its_next_run_is_when_its_message_is_due() -> None:
    jitter = jitter_ms("e", T, 30_000)
    assert jitter
    one = shown(State("f", "me", T, "id"), options={"countdown": 1.5}, timing={"jitter": 30})
    assert one.next_run == to_datetime(T + 1500 + jitter)


@pytest.mark.parametrize(("options", "timing"), [({"countdown": "soon"}, {}), ({}, {"jitter": "some"}), (5, [])])
def test_what_another_program_wrote_does_not_hide_it(options: Any, timing: Any) -> None:
    assert shown(State("f", "me", T, "id"), options=options, timing=timing).next_run == to_datetime(T)


@pytest.mark.parametrize(
    ("schedule", "timing", "when"),
    [
        ({"every": 30}, {"jitter": 5}, "every 30s, jitter 5s"),
        ({"every": 3600}, {}, "every 1h"),
        ({"every": 5430.0}, {"jitter": 600.0}, "every 1h 30m 30s, jitter 10m"),
        ({"crontab": "0 6 * * *"}, {"tz": "Europe/Berlin", "jitter": 0.25}, "0 6 * * * (Europe/Berlin), jitter 0.25s"),
        ({"every": 60}, {"jitter": "some"}, "every 1m"),
        (None, {"jitter": 0}, "-"),
    ],
)
def test_its_schedule_in_words(schedule: Any, timing: Any, when: str) -> None:
    assert shown(None, schedule=schedule, timing=timing).when == when


def test_one_that_has_ended_has_a_last_run_only() -> None:
    over = shown(State("f", "me", None, "", T - 60_000, 9))
    assert (over.next_run, over.last_run, over.runs) == (None, to_datetime(T - 60_000), 9)
    new = shown(None)
    assert (new.next_run, new.last_run, new.runs) == (None, None, 0)


def test_whether_its_task_is_known_is_said() -> None:
    assert shown(None).is_registered
    assert not shown(None, task="unknown").is_registered

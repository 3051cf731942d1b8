"""Missed runs: those that nothing makes up for are counted, each once."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.schedule.transitions import left_out
from tests.planner.conftest import Stage, run, stage, started
from tests.unit.test_transitions import MINUTE, T, at, entry, next_transition

HOUR = 60 * MINUTE

__all__ = ["stage"]


@pytest.mark.parametrize(
    ("missed", "timing", "late_ms", "number"),
    [
        ("skip", {}, HOUR, 59),
        ("once", {}, HOUR, 58),  # the last one runs late
        ("all", {"catch_up": 100}, HOUR, 0),
        ("all", {"catch_up": 10}, HOUR, 49),
        ("once", {}, 1_000, 0),  # merely late
        ("skip", {"lazy": True}, HOUR, 60),  # its own was not sent, either
        ("once", {"lazy": True}, HOUR, 59),
        ("once", {"paused": True}, HOUR, 0),
    ],
)
def test_how_many_a_step_leaves_out(missed: str, timing: dict[str, Any], late_ms: int, number: int) -> None:
    """It is an entry that runs every minute, and the planner comes so late."""
    one = entry(60, missed=missed, **timing)
    state = at(one, T, task_id="" if timing.get("lazy") else "id")
    now_ms = T + late_ms
    move = next_transition(one, state, now_ms, attended_ms=now_ms)
    assert move is not None
    assert left_out(one, state, move, now_ms) == number


def test_a_planner_tells_once(stage: Stage) -> None:
    entries = {"a": {"schedule": 60, "timing": {"missed": "skip"}}}
    started(stage, entries)
    stage.set_back("a", HOUR + 30_000, transferred=True)
    stage.client.delete(stage.store.keys.configurations)  # nobody was there meanwhile
    told: list[tuple[str, str, int]] = []
    for _ in range(2):
        planner = stage.planner(entries, on_missed=lambda *missed: told.append(missed))
        planner.read()
        run(planner)
    assert told == [("celery", "a", 59)]

"""The loop in which a planner runs: what a worker waits for when it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.schedule.planner import Planner
from celery_delayq.schedule.store import ScheduleStore
from tests.planner.conftest import Stage
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


class Planning:
    """A planner that has very much to do, until it is told that what is overdue has gone on."""

    def __init__(self) -> None:
        self.is_up_to_date = False
        self.passes = 0

    def begin_reading(self) -> None: ...

    def look(self) -> None: ...

    def on_changes(self, changes: Iterable[tuple[int, str]]) -> None: ...

    def run_due(self) -> int:
        self.passes += 1
        return 1

    def seconds_until_next(self) -> float | None:
        return 0.0


Start = Callable[[], tuple[PlannerLoop, Planning]]


@pytest.fixture
def start(client: redis.Redis) -> Iterator[Start]:
    """Start a loop."""
    loops: list[PlannerLoop] = []

    def start() -> tuple[PlannerLoop, Planning]:
        planning = Planning()

        @contextmanager
        def connect() -> Iterator[tuple[ScheduleStore, Callable[[], Planning]]]:
            yield ScheduleStore(client), lambda: planning

        made: Callable[[], AbstractContextManager[object]] = connect
        loops.append(PlannerLoop(made))
        loops[-1].start()
        return loops[-1], planning

    yield start
    for loop in loops:
        loop.stop()


def test_a_start_does_not_wait_for_what_is_new(start: Start) -> None:
    loop, planning = start()
    assert loop.wait_until_planned(5)
    wait_until(lambda: planning.passes > 1, "it plans")


@pytest.mark.parametrize("key", ["definitions", "configurations"])
def test_a_key_of_another_type_is_said_in_one_line(stage: Stage, caplog: pytest.LogCaptureFixture, key: str) -> None:
    name = getattr(stage.store.keys, key)
    stage.client.set(name, "no HASH")

    @contextmanager
    def connect() -> Iterator[tuple[ScheduleStore, Callable[[], Planner]]]:
        yield stage.store, lambda: stage.planner({"a": 60})

    loop = PlannerLoop(connect)
    loop.start()
    try:
        wait_until(lambda: caplog.records, "it is said")
    finally:
        loop.stop()
    (record,) = caplog.records
    assert f"WRONGTYPE: {name} is not a HASH; another program wrote it" in record.getMessage()
    assert record.exc_info is None


def test_a_start_waits_for_what_is_overdue(stage: Stage, start: Start) -> None:
    """So that a planner sees what nobody has transferred."""
    stage.queue().offer(b"late", eta=to_datetime(stage.store.now_ms() - 60_000))
    loop, planning = start()
    wait_until(lambda: planning.passes > 3, "it plans")
    assert not loop.wait_until_planned(0)
    planning.is_up_to_date = True
    assert loop.wait_until_planned(5)

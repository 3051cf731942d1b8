"""What of Celery's beat and schedules the package builds on; a new version that changes it must fail here."""

from __future__ import annotations

import inspect
from datetime import datetime, timedelta, timezone

import celery
import pytest
from celery import Celery, beat
from celery.schedules import crontab, schedule, solar
from celery.utils.time import remaining

from celery_delayq.beat import Scheduler

pytestmark = pytest.mark.one_server("it is about Celery")


@pytest.mark.parametrize("method", ["setup_schedule", "tick", "close"])
def test_a_scheduler_has_the_methods_that_are_overridden(method: str) -> None:
    assert callable(getattr(beat.Scheduler, method))


def test_beat_asks_a_scheduler_for_nothing_else() -> None:
    """`Service` calls these, and reads `max_interval` and `info`."""
    source = inspect.getsource(beat.Service)
    for name in ("scheduler.tick()", "scheduler.should_sync()", "scheduler._do_sync()", "scheduler.close()"):
        assert name in source


def test_the_scheduler_is_made_with_what_beat_gives(app: Celery) -> None:
    service = beat.Service(app, max_interval=7, scheduler_cls="celery_delayq.beat:Scheduler")
    scheduler = service.get_scheduler(lazy=True)
    assert isinstance(scheduler, Scheduler)
    assert scheduler.max_interval == 7
    assert "delayq:schedule" in scheduler.info


def test_a_crontab_keeps_what_it_was_made_of_and_what_it_matches(app: Celery) -> None:
    one = crontab("*/30", "8", "mon", "1-3", "2", app=app)
    made_of = [getattr(one, f"_orig_{name}") for name in ("minute", "hour", "day_of_week", "day_of_month")]
    assert made_of == ["*/30", "8", "mon", "1-3"]
    assert one._orig_month_of_year == "2"
    assert (one.minute, one.hour, one.day_of_week) == ({0, 30}, {8}, {1})
    assert (one.day_of_month, one.month_of_year) == ({1, 2, 3}, {2})


@pytest.mark.parametrize("kind", [crontab, schedule, solar])
def test_schedules_have_the_methods_that_a_subclass_may_override(kind: type) -> None:
    assert callable(kind.is_due)  # type: ignore[attr-defined]
    assert callable(kind.remaining_estimate)  # type: ignore[attr-defined]


def test_a_schedule_takes_its_now_from_nowfun(app: Celery) -> None:
    last = datetime(2027, 1, 1, tzinfo=timezone.utc)
    one = schedule(60, nowfun=lambda: last, app=app)
    assert one.remaining_estimate(last) == timedelta(seconds=60)
    assert one.tz == app.timezone


def test_a_relative_interval_is_rounded(app: Celery) -> None:
    last = datetime(2027, 1, 1, 10, 17, 3, tzinfo=timezone.utc)
    assert last + remaining(last, timedelta(hours=1), last, relative=True) == last.replace(hour=11, minute=0, second=0)


def test_lazy_functions_are_called_by_beat() -> None:
    assert beat.BeatLazyFunc(int, "7")() == 7


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery 5.6 does not mark the messages of its beat yet")
def test_beat_marks_its_messages() -> None:
    assert "'celery_beat_task'] = True" in inspect.getsource(beat.Scheduler.apply_async)

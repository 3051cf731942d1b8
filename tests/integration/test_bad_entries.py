"""Entries that go wrong wherever a planner touches them: each is shown with its error, and all others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedule

from celery_delayq import InvalidSchedule
from tests.foreign import FOREIGN, FOREIGN_GOOD
from tests.integration.commands import delayq
from tests.integration.planning import planning
from tests.support import wait_until
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError


class WithoutInterval(schedule):
    """Forgets to call the constructor of its base class."""

    def __init__(self) -> None:
        BaseSchedule.__init__(self)
        self.relative = False


class Unshowable(schedule):
    """Cannot be shown, and runs."""

    def __repr__(self) -> str:
        raise Unspeakable


class Forgetful(schedule):
    """Knows its interval so many times, as a class that reads it from elsewhere."""

    def __init__(self, times: int) -> None:
        self.times = times
        super().__init__(timedelta(seconds=0.1))

    @property
    def run_every(self) -> timedelta:
        self.times -= 1
        if self.times < 0:
            raise Unspeakable
        return self._interval

    @run_every.setter
    def run_every(self, value: timedelta) -> None:
        self._interval = value


class Answers(BaseSchedule):
    """Answers whether it is due."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        super().__init__()

    def is_due(self, last_run_at: datetime) -> Any:
        return _given(self.answer)


class Waits(schedule):
    """Says how long to wait."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        super().__init__(timedelta(seconds=60))

    def remaining_estimate(self, last_run_at: datetime) -> Any:
        return _given(self.answer)


def _given(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _raise(error: Exception) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def entry(given: Any = 60, **fields: Any) -> dict[str, Any]:
    return {"task": "note", "schedule": given, **fields}


def options(**given: Any) -> dict[str, Any]:
    return entry(options=given)


#: Entries of a configuration, by what is wrong with them.
BAD = {
    "no hour": entry(crontab(hour=[])),
    "no minute": entry(crontab(minute=())),
    "no weekday": entry(crontab(day_of_week=set())),
    "no interval": entry(WithoutInterval()),
    "forgets at once": entry(Forgetful(1)),
    **{f"forgets after {times}": entry(Forgetful(times)) for times in range(2, 15)},
    "no answer": entry(Answers(None)),
    "half an answer": entry(Answers((True,))),
    "not a number": entry(Answers((True, float("nan")))),
    "beyond floats": entry(Answers((True, 10**400))),
    "unspeakable when asked": entry(Answers(Unspeakable())),
    "not to be encoded when asked": entry(Answers(ValueError("\udcff"))),
    "waits for nothing": entry(Waits(None)),
    "waits for ever": entry(Waits(timedelta.max)),
    "has waited": entry(Waits(timedelta.min)),
    "too deep": entry(Waits(RecursionError())),
    "unspeakable wait": entry(Waits(Unspeakable())),
    "too many arguments": entry(args=[1, 2, 3]),
    "not to be encoded": entry(kwargs={"\udcff": 1}),
    "not to be sent": entry(args=[object()]),
    "lazily unspeakable": entry(args=[BeatLazyFunc(_raise(Unspeakable()))]),
    "lazily not to be encoded": entry(args=[BeatLazyFunc(_raise(ValueError("\udcff")))]),
    "queue": options(queue="\udcff"),
    "number as queue": options(queue=5),
    "expires": options(expires="never"),
    "eta": options(eta="then"),
    "headers": options(headers=5),
    "serializer": options(serializer="unknown"),
    "option": {"task": "note", "schedule": 60, "options": {5: 5}},
    "task": {"task": 5, "schedule": 60},
    "nothing": None,
    "\udcff": entry(),
}

GOOD = {"good": entry(0.1), "also good": entry(60), "cannot be shown": entry(Unshowable(60))}


@pytest.fixture
def shop(broker_url: str, ledger_url: str, broker_client: redis.Redis) -> Iterator[Celery]:
    """An app whose configuration is full of mistakes."""
    broker_client.flushall()
    schedule = {**dict(list(BAD.items())[::2]), **GOOD, **dict(list(BAD.items())[1::2])}
    with publisher(broker_url, ledger_url, beat_schedule=schedule) as app:
        yield app


def shown(app: Celery) -> dict[str, Any]:
    return {entry.name: entry for entry in app.delayq.schedule}


def test_all_others_go_on(shop: Celery, caplog: pytest.LogCaptureFixture) -> None:
    bad = {name.replace("\udcff", "\\udcff") for name in BAD}
    with planning(shop):
        wait_until(lambda: all(shown(shop).get(name) and shown(shop)[name].error for name in bad), "all are shown")
        before = shown(shop)["good"].runs
        wait_until(lambda: shown(shop)["good"].runs > before + 3, "the good one goes on")
        found = shown(shop)
    assert {name for name, one in found.items() if one.error} == bad
    assert all(found[name].next_run for name in GOOD)
    assert not [text for text in caplog.messages if "interrupted" in text]
    listed = delayq(shop, "schedule", "list")
    assert listed.exit_code == 0
    assert "the field hour of a crontab must not be empty" in found["no hour"].error
    assert found["unspeakable when asked"].error == "Unspeakable"


def test_what_another_program_wrote_is_shown_and_removed(shop: Celery, broker_client: redis.Redis) -> None:
    shop.conf.beat_schedule = GOOD
    broker_client.hset("delayq:schedule", mapping={**FOREIGN, **FOREIGN_GOOD})
    with planning(shop):
        wait_until(lambda: all(shown(shop)[name].error for name in FOREIGN), "all are shown")
        wait_until(lambda: GOOD.keys() <= shown(shop).keys() and shown(shop)["null"].next_run, "all others are planned")
        before = shown(shop)["good"].runs
        wait_until(lambda: shown(shop)["good"].runs > before + 3, "the good one goes on")
        found = shown(shop)
        assert {name for name, one in found.items() if one.error} == FOREIGN.keys()
        assert (found["null"].args, found["null"].kwargs) == ((), {})
        assert delayq(shop, "schedule", "list").exit_code == 0
        assert delayq(shop, "schedule", "list", "--json").exit_code == 0
        for name in FOREIGN:
            shown_alone = delayq(shop, "schedule", "show", name)
            assert not shown_alone.exception or isinstance(shown_alone.exception, SystemExit), name
            with suppress(InvalidSchedule):
                shop.delayq.schedule.update(name, jitter=0.0)
            shop.delayq.schedule.remove(name)
        wait_until(lambda: not any(one.error for one in shown(shop).values()), "the errors are gone")
    assert shown(shop).keys() == {*GOOD, "null"}

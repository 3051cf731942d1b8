"""Definitions: as Celery's configuration has them, as data, and their fingerprints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, get_args, get_type_hints
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, schedule
from kombu import Exchange, Queue

from celery_delayq.basics.errors import ConfigurationError, InvalidSchedule
from celery_delayq.options.settings import MISSED_POLICIES
from celery_delayq.schedule import encoding
from celery_delayq.schedule.configured import configured
from celery_delayq.schedule.definition import Definition, Timing, TimingOptions

APP = Celery("shop", set_as_current=False)


def no_op() -> None:
    """Do nothing."""


class Odd(schedule):
    """A class of the user's."""


def define(schedule: Any = 60, **fields: Any) -> Definition:
    return Definition.of("e", {"task": "t", "schedule": schedule, **fields}, APP)


@pytest.mark.parametrize(
    ("given", "data"),
    [
        (30, {"every": 30.0}),
        (0.5, {"every": 0.5}),
        (timedelta(minutes=2), {"every": 120.0}),
        (schedule(7, relative=True, app=APP), {"every": 7.0, "relative": True}),
        (crontab("*/5", "8-17", "mon-fri", app=APP), {"crontab": "*/5 8-17 * * mon-fri"}),
        (crontab({30, 0}, [4], day_of_month="1, 15", app=APP), {"crontab": "0,30 4 1,15 * *"}),
        ("0 6 * * 1", {"crontab": "0 6 * * 1"}),
    ],
)
def test_schedules_survive_as_data(given: Any, data: dict[str, Any]) -> None:
    one = define(given)
    assert encoding.encode(one.schedule) == data
    again = Definition.of("e", json.loads(json.dumps(one.data())), APP)
    assert again == one
    assert again.fingerprint == one.fingerprint


@pytest.mark.parametrize("field", [{"args": [1]}, {"kwargs": {"a": 1}}, {"options": {"queue": "q"}}, {"schedule": 61}])
def test_definitions_that_differ_have_other_fingerprints(field: dict[str, Any]) -> None:
    assert define(**field).fingerprint != define().fingerprint


@dataclass(slots=True)
class Slots:
    value: Any


@dataclass
class Nested:
    value: Any


class Speaking:
    """Says itself what a message has in its place."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __json__(self) -> Any:
        return self._value


class Color(Enum):
    RED, GREEN = 1, 2


#: Values of which no two are the same.
DIFFERENT = [
    *(Decimal("1.5"), Decimal("2.5"), UUID(int=1), UUID(int=2), time(6), time(7), Path("a"), Path("b"), 1.5, "1.5"),
    *(re.compile("a"), re.compile("b"), re.compile("a", re.IGNORECASE), ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")),
    *(Slots(1), Slots(2), Slots(Slots(1)), Slots(Nested(Slots(Decimal(1)))), Slots(Nested(Slots(Decimal(2))))),
    *(
        Color.RED,
        Color.GREEN,
        Fraction(1, 2),
        Fraction(1, 3),
        1j,
        2j,
        range(2),
        range(3),
        b"a",
        b"\xff",
        {1},
        {2},
        {1, 2},
    ),
    *(
        date(2027, 1, 1),
        date(2027, 1, 2),
        datetime(2027, 1, 1, tzinfo=timezone.utc),
        datetime(2027, 1, 1, 1, tzinfo=timezone.utc),
    ),
    *(timedelta(1), timedelta(2), OrderedDict(a=1), {(1, 2): 1}, {(1, 3): 1}, deque([1]), deque([2])),
    *(
        Speaking(1.25),
        Speaking(2.25),
        partial(int, "1"),
        partial(int, "2"),
        Queue("a"),
        Queue("b"),
        Queue("a", Exchange("b")),
    ),
    *(ip_address("10.0.0.1"), ip_address("10.0.0.2")),
]


@pytest.mark.parametrize("nest", [lambda value: [value], lambda value: {"a": [value]}, lambda value: [{(1, 2): value}]])
def test_values_that_differ_have_other_fingerprints(nest: Callable[[Any], Any]) -> None:
    found = {
        define(args=nest(value) if isinstance(nest(value), list) else [nest(value)]).fingerprint for value in DIFFERENT
    }
    assert len(found) == len(DIFFERENT)


def test_a_schedule_class_of_the_users_is_known_by_all_that_it_has() -> None:
    class Offices(schedule):
        def __init__(self, opens: time) -> None:
            self.opens = opens
            super().__init__(60)

    assert define(Offices(time(8))).fingerprint != define(Offices(time(9))).fingerprint
    assert define(Offices(time(8))).fingerprint == define(Offices(time(8))).fingerprint


def test_fingerprints_are_the_same_in_every_process() -> None:
    """Whatever is in a definition: sets, functions, objects, whose text has an address or another order there."""
    code = """
import datetime
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab
from celery_delayq.schedule.definition import Definition
from tests.unit.test_entry import DIFFERENT, Slots
app = Celery("shop")
args = [BeatLazyFunc(datetime.datetime.now), {"a", "b", "c"}, object(), Slots({"a", "b", "c"}), DIFFERENT]
entry = {"task": "t", "schedule": crontab(app=app), "args": args}
print(Definition.of("e", entry, app).fingerprint)
"""
    found = {subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)}
    assert len(found) == 1


@pytest.mark.parametrize("given", [{"schedule": Odd(1)}, {"args": [BeatLazyFunc(datetime.now)]}, {"args": [(1, 2)]}])
def test_what_is_no_data_lives_in_the_configuration_only(given: dict[str, Any]) -> None:
    data = define(**given).data()
    assert data is None or given["args"] == [(1, 2)]


def test_lazily_evaluated_arguments_make_an_entry_lazy() -> None:
    assert not define().is_lazy
    assert define(kwargs={"a": BeatLazyFunc(datetime.now)}).is_lazy
    assert define(options={"delayq": {"lazy": True}}).is_lazy


def test_timing_is_in_the_options_which_stock_beat_ignores() -> None:
    one = define(
        options={"queue": "q", "delayq": {"tz": "Europe/Berlin", "start": datetime(2030, 1, 1, tzinfo=timezone.utc)}}
    )
    assert one.options == {"queue": "q"}
    assert one.timing.data() == {"tz": "Europe/Berlin", "start": "2030-01-01T00:00:00+00:00"}


class TestConfigured:
    def test_all_forms(self) -> None:
        app = Celery("shop", set_as_current=False, broker="memory://")

        @app.task(name="add", shared=False)
        def add(x: int, y: int) -> int:
            return x + y

        app.conf.beat_schedule = {
            "number": {"task": "t", "schedule": 3, "relative": True},
            "entry": ScheduleEntry(name="entry", task="t", schedule=timedelta(seconds=3), app=app),
        }
        app.add_periodic_task(5, add.s(1, 2), name="added", expires=3)
        found = configured(app)
        assert found.entries.keys() == {"number", "entry", "added", "celery.backend_cleanup"}
        assert found.entries["added"].options == {"expires": 3}
        assert encoding.encode(found.entries["number"].schedule) == {"every": 3.0, "relative": True}
        assert not found.errors

    def test_a_wrong_entry_does_not_keep_the_others_out(self) -> None:
        app = Celery("shop", set_as_current=False)
        app.conf.beat_schedule = {"bad": {"task": "t"}, "good": {"task": "t", "schedule": 3}}
        found = configured(app)
        assert "good" in found.entries
        assert "None is not a valid schedule" in found.errors["bad"]

    def test_routes_belong_to_it(self) -> None:
        def fingerprint(**conf: Any) -> str:
            app = Celery("shop", set_as_current=False)
            app.conf.update(beat_schedule={"a": {"task": "t", "schedule": 3}}, **conf)
            return configured(app).entries["a"].fingerprint

        assert fingerprint() == fingerprint()
        assert fingerprint() != fingerprint(task_routes={"t": "other"})
        assert fingerprint() != fingerprint(task_default_queue="other")

    @pytest.mark.parametrize(
        "option",
        [{"queue": "own"}, {"priority": 3}, {"expires": 9}, {"serializer": "pickle"}, {"time_limit": 5}],
        ids=str,
    )
    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_the_options_of_a_task_belong_to_it(self, option: dict[str, Any]) -> None:
        def fingerprint(**options: Any) -> str:
            app = Celery("shop", set_as_current=False, broker="memory://", backend="rpc://")
            app.conf.beat_schedule = {"a": {"task": "t", "schedule": 3}}
            app.task(name="t", shared=False, **options)(no_op)
            return configured(app).entries["a"].fingerprint

        assert fingerprint() == fingerprint()
        assert fingerprint() != fingerprint(**option)

    def test_a_process_that_does_not_have_the_task_agrees_with_others(self) -> None:
        """Unless the task has options of its own: there it would be sent elsewhere."""
        app = Celery("shop", set_as_current=False, broker="memory://", backend="rpc://")
        app.conf.beat_schedule = {"a": {"task": "t", "schedule": 3}}
        before = configured(app).fingerprint
        app.task(name="t", shared=False)(no_op)
        assert configured(app).fingerprint == before

    @pytest.mark.parametrize(
        ("given", "reads_clock"),
        [(3, False), (timedelta(days=1), False), (crontab(hour=6), True), (schedule(86_400, relative=True), True)],
    )
    def test_the_time_zone_belongs_to_what_reads_a_clock(self, given: Any, reads_clock: bool) -> None:
        def fingerprint(zone: str, **timing: Any) -> str:
            app = Celery("shop", set_as_current=False, broker="memory://", backend="rpc://")
            entry = {"task": "t", "schedule": copy(given), "options": {"delayq": timing}}
            app.conf.update(timezone=zone, beat_schedule={"a": entry})
            return configured(app).entries["a"].fingerprint

        assert (fingerprint("UTC") != fingerprint("Europe/Berlin")) == reads_clock
        assert fingerprint("UTC", tz="Asia/Tokyo") == fingerprint("Europe/Berlin", tz="Asia/Tokyo")

    def test_queues_that_a_worker_comes_to_know_do_not(self) -> None:
        """Workers consume from different queues, and routing to a queue that is not declared makes it known."""
        app = Celery("shop", set_as_current=False)
        app.conf.beat_schedule = {"a": {"task": "t", "schedule": 3}}
        before = configured(app).fingerprint
        app.amqp.queues.select(["mail"])
        assert app.amqp.queues["reports"]
        assert configured(app).fingerprint == before


def test_a_countdown_may_be_a_timedelta() -> None:
    assert define(options={"countdown": timedelta(minutes=1.5)}).options == {"countdown": 90.0}


def test_spans_may_be_timedeltas() -> None:
    timing = define(timing={"jitter": timedelta(seconds=1.5), "max_lateness": timedelta(minutes=1)}).timing
    assert (timing.jitter, timing.max_lateness) == (1.5, 60.0)


def test_type_checkers_know_all_options() -> None:
    assert set(TimingOptions.__annotations__) == {one.name for one in fields(Timing)}
    assert get_args(get_args(get_type_hints(TimingOptions)["missed"])[0]) == MISSED_POLICIES


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(InvalidSchedule, match=r"'e'.*unknown field 'arg'"):
        define(arg=[1])


def nested(times: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(times):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": 5}, "options must be a dict, not 5"),
        ({"options": {"delayq": 5}}, "options['delayq'] must be a dict, not 5"),
        ({"options": {"countdown": "soon"}}, "countdown must be"),
        ({"timing": [1]}, "timing must be a dict"),
        ({"timing": {"jitter": "5"}}, "jitter must be"),
        ({"timing": {"jitter": 1e300}}, "jitter must be"),
        ({"timing": {"max_lateness": 10**400}}, "max_lateness must be"),
        ({"timing": {"start": "9999-12-31T23:59:59-05:00"}}, "start must be"),
        ({"timing": {"start": "2030-01-02T00:00Z", "end": "2030-01-01T00:00Z"}}, "end must be later than start"),
        ({"task": "\udcff"}, "not valid Unicode"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSchedule, match="periodic task 'e': ") as caught:
        define(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [5, None, ["task"], {"task": "t", "schedule": 60, "args": nested(100_000)}])
def test_a_wrong_entry_does_not_keep_the_others_from_running(wrong: Any) -> None:
    app = Celery("shop", set_as_current=False, broker="memory://", backend="rpc://")
    app.conf.beat_schedule = {"wrong": wrong, "good": {"task": "t", "schedule": 60}}
    found = configured(app)
    assert found.entries.keys() == {"good"}
    assert found.errors.keys() == {"wrong"}


def test_a_schedule_that_is_no_dict_is_named() -> None:
    app = Celery("shop", set_as_current=False, broker="memory://", backend="rpc://")
    app.conf.beat_schedule = ["t"]
    with pytest.raises(ConfigurationError, match="beat_schedule must be a dict"):
        configured(app)


class TestDelaysThatOutlastTheRun:
    """A run that expires before it is due is dropped without a word, so such an entry is refused."""

    @pytest.mark.parametrize(
        ("options", "jitter", "words"),
        [
            ({"expires": 10}, 10.5, r"jitter \(10.5 s\) must be shorter than expires \(10 s\)"),
            ({"expires": 10, "countdown": 10}, 0, r": countdown \(10 s\) must be shorter"),
            ({"expires": 10, "countdown": 4}, 7, r"countdown plus jitter \(11 s\) must be shorter"),
            ({"expires": 0.5}, 1, r"expires \(0.5 s\)"),
        ],
        ids=str,
    )
    def test_are_refused(self, options: dict[str, Any], jitter: float, words: str) -> None:
        with pytest.raises(InvalidSchedule, match=words):
            define(options=options, timing={"jitter": jitter})

    @pytest.mark.parametrize(
        ("options", "jitter"),
        [
            ({"expires": 10}, 9.5),
            ({"expires": None}, 60),
            ({}, 60),
            ({"expires": 0}, 0),
            ({"expires": "2999-01-01"}, 60),
        ],
        ids=str,
    )
    def test_others_are_not(self, options: dict[str, Any], jitter: float) -> None:
        assert define(options=options, timing={"jitter": jitter}).delay_ms(0) <= jitter * 1000

    def test_of_a_task_that_expires_are_refused_too(self) -> None:
        app = Celery("shop", set_as_current=False)
        app.task(name="t", expires=30, lazy=False, shared=False)(test_schedules_survive_as_data)
        given = {"task": "t", "schedule": 60, "timing": {"jitter": 40}}
        with pytest.raises(InvalidSchedule, match=r"must be shorter than expires of its task \(30 s\)"):
            Definition.of("e", given, app)
        assert Definition.of("e", {**given, "options": {"expires": 50}}, app).delay_ms(0) <= 40_000

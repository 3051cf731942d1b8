"""`delayq schedule import-django-celery-beat`, with a real project and the real django_celery_beat."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.support import missing, wait_until
from tests.workers import CeleryCommand

REPOSITORY = Path(__file__).parents[2]

#: Where `make setup` and tox install django_celery_beat, if it is not beside everything else.
FOLDER = Path(sys.prefix, "monitors")

_SET_UP = """
import django
django.setup()
from datetime import datetime, timedelta, timezone
from django_celery_beat.models import *
"""

#: An interval of a day, a crontab and so on, for the tests.
_SCHEDULES = """
day = IntervalSchedule.objects.create(every=1, period="days")
second = IntervalSchedule.objects.create(every=1, period="seconds")
now = datetime.now(timezone.utc)

def add(name, **fields):
    return PeriodicTask.objects.create(name=name, **{"task": "note", **fields})

def clocked(seconds):
    return {"clocked": ClockedSchedule.objects.create(clocked_time=now + timedelta(seconds=seconds)), "one_off": True}
"""

Rows = Callable[[str], None]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """django_celery_beat is here."""
    if not (FOLDER / "django_celery_beat").exists() and importlib.util.find_spec("django_celery_beat") is None:
        missing("no django_celery_beat: `make setup` installs it (dependency group `monitors`)")


def run(env: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and no rows."""
    path = tmp_path_factory.mktemp("beat") / "empty.sqlite3"
    done = run(environment(path), "-m", "django", "migrate", "--verbosity=0")
    assert done.returncode == 0, done.stderr
    return path


def environment(database: Path, broker: str = "delayq://", ledger: str = "") -> dict[str, str]:
    return {
        "BROKER": broker,
        "DATABASE": str(database),
        "DJANGO_SETTINGS_MODULE": "tests.contrib.beat_settings",
        "LEDGER": ledger,
        "NO_COLOR": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, FOLDER))),
    }


@pytest.fixture
def env(empty: Path, tmp_path: Path, redis_server: PrivateRedis) -> dict[str, str]:
    """The environment of a project with an empty broker and no periodic tasks in its database."""
    with redis_server.client() as client:
        client.flushall()
    database = tmp_path / "db.sqlite3"
    database.write_bytes(empty.read_bytes())
    return environment(database, brokers.url_of(redis_server), f"redis://127.0.0.1:{redis_server.port}/9")


@pytest.fixture
def rows(env: dict[str, str]) -> Rows:
    """Runs code that adds rows."""

    def add(code: str) -> None:
        done = run(env, "-c", "\n".join((_SET_UP, _SCHEDULES, code)))
        assert done.returncode == 0, done.stderr

    return add


@pytest.fixture
def command(env: dict[str, str]) -> Command:
    """Runs `celery -A proj delayq schedule ...`."""

    def do(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run({**env, **more}, "-m", "celery", "-A", "tests.contrib.beat_app", "delayq", "schedule", *args)

    return do


def imported(command: Command) -> dict[str, dict[str, Any]]:
    """Import everything; return the entries, by their names."""
    done = command("import-django-celery-beat", "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = command("list", "--json").stdout.splitlines()
    return {entry["name"]: entry for entry in map(json.loads, lines)}


@pytest.mark.thorough
def test_is_a_dry_run_at_first(command: Command, rows: Rows) -> None:
    rows("add('daily', interval=day); add('mine', interval=day); add('celery.backend_cleanup', interval=day)")
    rows("add('once', **clocked(3600))")
    done = command("import-django-celery-beat")
    assert "+ daily: note, every 1d\n" in done.stdout
    assert re.search(r"\+ once: note, every 1s, \{.*'start': '[^']+', .*'max_runs': 1.*\}\n", done.stdout)
    assert "- mine: skipped: it is in the configuration" in done.stdout
    assert "- celery.backend_cleanup: skipped: planners add it themselves" in done.stdout
    assert "2 entries can be added. Pass --apply to do so." in done.stdout
    assert command("list", "--json").stdout == ""


@pytest.mark.thorough
def test_twice_adds_nothing_more(command: Command, rows: Rows) -> None:
    rows("add('daily', interval=day)")
    assert set(imported(command)) == {"daily"}
    done = command("import-django-celery-beat", "--apply")
    assert "- daily: skipped: an entry of that name exists already" in done.stdout
    assert "0 entries added" in done.stdout


@pytest.mark.thorough
def test_each_kind_of_schedule_is_moved(command: Command, rows: Rows) -> None:
    rows(
        """
add("half", interval=IntervalSchedule.objects.create(every=500000, period="microseconds"))
add("weekly", interval=IntervalSchedule.objects.create(every=7, period="days"))
cron = CrontabSchedule.objects.create(
    minute="*/5", hour="8 - 17", day_of_month="1,15", month_of_year="*", day_of_week="mon-fri",
    timezone="Europe/Berlin")
add("cron", crontab=cron)
add("once", **clocked(3600))
"""
    )
    found = imported(command)
    assert found["half"]["schedule"] == {"every": 0.5}
    assert found["weekly"]["schedule"] == {"every": 7 * 86400.0}
    assert found["cron"]["schedule"] == {"crontab": "*/5 8-17 1,15 * mon-fri"}
    assert found["cron"]["timing"] == {"tz": "Europe/Berlin"}
    once = found["once"]["timing"]
    assert once["max_runs"] == 1
    left = datetime.fromisoformat(once["start"]) - datetime.now(timezone.utc)
    assert timedelta(minutes=58) < left < timedelta(minutes=60)


def test_a_solar_event_is_moved(command: Command, rows: Rows) -> None:
    pytest.importorskip("ephem")
    rows('add("sun", solar=SolarSchedule.objects.create(event="sunset", latitude="52.5", longitude="13.4"))')
    assert imported(command)["sun"]["schedule"] == {"solar": "sunset", "lat": 52.5, "lon": 13.4}


@pytest.mark.thorough
def test_each_field_is_moved(command: Command, rows: Rows) -> None:
    rows(
        """
later = datetime(2035, 5, 1, 12, tzinfo=timezone.utc)
add("all", interval=day, args='[1, "é"]', kwargs='{"a": [null]}', queue="mail", priority=6, headers='{"x": 1}',
    expire_seconds=90, start_time=later, one_off=True)
add("route", interval=day, exchange="e", routing_key="r")
add("off", interval=day, enabled=False)
add("until", interval=day, expires=later)
"""
    )
    found = imported(command)
    assert (found["all"]["args"], found["all"]["kwargs"]) == ([1, "é"], {"a": [None]})
    assert found["all"]["options"] == {
        "queue": "mail",
        "priority": 6,
        "headers": {"x": 1, "periodic_task_name": "all"},
        "expires": 90,
    }
    later = "2035-05-01T12:00:00+00:00"
    assert found["all"]["timing"] == {"start": later, "max_runs": 1}
    assert {"exchange": "e", "routing_key": "r"}.items() <= found["route"]["options"].items()
    assert found["off"]["timing"] == {"enabled": False}
    assert found["until"]["timing"] == {"end": later}
    assert found["until"]["options"]["expires"] == later


def test_what_cannot_be_moved_is_left_out_with_the_reason(command: Command, rows: Rows) -> None:
    rows(
        """
add("daily", interval=day)
add("gone", interval=day, expires=now - timedelta(days=1))
add("ran", interval=day, one_off=True, total_run_count=1)
add("over", enabled=False, **clocked(-60))
add("moment", interval=day, kwargs='{"at": {"__type__": "datetime", "__value__": "2030-01-01T00:00:00"}}')
add("cut", interval=day, args="[1")
add("list", interval=day, kwargs="[1]")
add("text", interval=day, headers='"x"')
add("odd", crontab=CrontabSchedule.objects.create(minute="99"))
add("never", interval=IntervalSchedule.objects.create(every=0, period="days"))
add("bare", interval=day)
PeriodicTask.objects.filter(name="bare").update(interval=None)
"""
    )
    done = command("import-django-celery-beat", "--apply")
    assert done.returncode == 0, done.stderr
    reasons = dict(line[2:].split(": skipped: ") for line in done.stdout.splitlines() if line.startswith("- "))
    assert reasons.pop("gone").startswith("it has expired: 20")
    assert reasons.pop("ran") == "it runs once, and has run"
    assert reasons.pop("over").startswith("its time is over: 20")
    assert reasons.pop("moment") == "its arguments or options are not JSON types"
    assert reasons.pop("bare") == "it has no schedule"
    assert "args must be a list or tuple, and kwargs a dict" in reasons.pop("list")
    assert "99" in reasons.pop("odd")
    assert "an interval must be more than 0" in reasons.pop("never")
    assert set(reasons) == {"cut", "text"}
    assert all(reasons.values())
    assert "1 entry added" in done.stdout


@pytest.mark.thorough
def test_an_interval_goes_on_from_its_last_run(command: Command, rows: Rows) -> None:
    rows(
        """
add("fresh", interval=day)
add("due in an hour", interval=day, last_run_at=now - timedelta(hours=23))
add("overdue", interval=day, last_run_at=now - timedelta(days=3))
add("short", interval=second, last_run_at=now - timedelta(days=3))
add("started", interval=day, last_run_at=now - timedelta(hours=23), start_time=now - timedelta(days=9))
"""
    )
    found = imported(command)

    def left_s(name: str) -> float:
        start = datetime.fromisoformat(found[name]["timing"]["start"])
        return (start - datetime.now(timezone.utc)).total_seconds()

    assert found["fresh"]["timing"] == found["short"]["timing"] == {}
    assert 3500 < left_s("due in an hour") < 3600
    assert 3500 < left_s("started") < 3600
    assert 0 < left_s("overdue") < 60


@pytest.mark.thorough
def test_without_zones_a_crontab_has_none(command: Command, rows: Rows) -> None:
    rows('add("cron", crontab=CrontabSchedule.objects.create(hour="4", timezone="Europe/Berlin"))')
    done = command("import-django-celery-beat", "--apply", SETTINGS='{"DJANGO_CELERY_BEAT_TZ_AWARE": false}')
    assert "1 entry added" in done.stdout
    assert json.loads(command("show", "cron", "--json").stdout)["timing"] == {}


@pytest.mark.thorough
def test_naive_times_are_in_the_zone_of_django(env: dict[str, str], command: Command) -> None:
    naive = json.dumps({"USE_TZ": False})
    add = 'add("e", interval=day, start_time=datetime(2035, 5, 1, 12))'
    done = run({**env, "SETTINGS": naive}, "-c", "\n".join((_SET_UP, _SCHEDULES, add)))
    assert done.returncode == 0, done.stderr
    done = command("import-django-celery-beat", "--apply", SETTINGS=naive)
    assert "1 entry added" in done.stdout, done.stderr
    entry = json.loads(command("show", "e", "--json").stdout)
    assert entry["timing"] == {"start": "2035-05-01T16:00:00+00:00"}  # noon in New York


@pytest.mark.parametrize(
    ("env_of", "message"),
    [
        ({"SETTINGS": '{"INSTALLED_APPS": ["nowhere"]}'}, "cannot set up Django: No module named 'nowhere'"),
        ({"SETTINGS": '{"INSTALLED_APPS": []}'}, "django_celery_beat is not in INSTALLED_APPS"),
        ({"DATABASE": ":memory:"}, "cannot read the tables of django_celery_beat: no such table"),
    ],
)
def test_a_project_that_cannot_be_read(command: Command, env_of: dict[str, str], message: str) -> None:
    done = command("import-django-celery-beat", **env_of)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_imported_tasks_run(env: dict[str, str], command: Command, rows: Rows) -> None:
    """Once, at its time, if it is clocked or one-off; again and again, if it is not."""
    rows(
        """
add("clocked", args='["clocked"]', **clocked(4))
add("late", args='["late"]', **clocked(-5))
add("one-off", args='["one-off"]', interval=second, one_off=True)
add("often", args='["often"]', interval=second)
"""
    )
    assert set(imported(command)) == {"clocked", "late", "one-off", "often"}
    with (
        redis.Redis.from_url(env["LEDGER"]) as client,
        CeleryCommand(
            *("worker", "--pool=solo", "--loglevel=INFO"),
            broker=env["BROKER"],
            ledger=env["LEDGER"],
            app="tests.contrib.beat_app",
            env=env,
        ) as worker,
    ):

        def noted() -> list[Any]:
            return [json.loads(one) for one in client.lrange("noted", 0, -1)]

        def count(name: str) -> int:
            return sum(args == [name] for args, _, _ in noted())

        try:
            wait_until(lambda: count("clocked") and count("often") >= 7, "the runs", 60)
        except AssertionError:
            print(worker.log)
            raise
        assert count("clocked") == count("late") == count("one-off") == 1
        assert {tuple(args): header for args, _, header in noted()}[("clocked",)] == "clocked"

"""`celery -A app delayq schedule`: what people do with periodic tasks on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import redis
from celery import Celery
from click.testing import Result

from tests.integration.commands import delayq

Command = Callable[..., Result]


@pytest.fixture
def command(app: Celery, broker_client: redis.Redis) -> Command:
    """Run `celery delayq schedule ...` in this process, on an empty broker."""
    broker_client.flushall()

    def run(*args: str) -> Result:
        return delayq(app, "schedule", *args)

    return run


def well(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def test_an_entry_is_added_seen_and_removed(command: Command) -> None:
    args = ("--args", "[42]", "--options", '{"priority": 3}', "--timing", '{"tz": "Europe/Berlin"}')
    assert "report added" in well(command("add", "report", "note", "0 6 * * mon-fri", *args))
    assert "0 6 * * mon-fri (Europe/Berlin)" in well(command("list"))
    (line,) = well(command("list", "--json")).splitlines()
    assert json.loads(line)["args"] == [42]
    assert json.loads(well(command("show", "report", "--json")))["timing"] == {"tz": "Europe/Berlin"}
    assert "paused" in well(command("pause", "report"))
    assert re.search(r"^status +paused *$", well(command("show", "report")), re.MULTILINE)
    well(command("resume", "report"))
    well(command("remove", "report"))
    assert well(command("list", "--json")) == ""
    assert "no periodic tasks" in well(command("list"))


@pytest.mark.parametrize(("when", "every_s"), [("2.5", 2.5), ("90s", 90), ("1h30m", 5400)])
def test_intervals_are_seconds_or_spans(command: Command, when: str, every_s: float) -> None:
    well(command("add", "often", "note", when))
    assert json.loads(well(command("show", "often", "--json")))["schedule"] == {"every": every_s}


def test_intervals_are_shown_in_words(command: Command) -> None:
    well(command("add", "often", "note", "2.5"))
    assert "every 2.50 seconds" in well(command("list"))


def test_run_now_sends(command: Command, broker_client: redis.Redis) -> None:
    well(command("add", "often", "note", "3600"))
    well(command("run-now", "often"))
    assert broker_client.llen("celery") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "nothing"), "no periodic task 'nothing'"),
        (("add", "a", "note", "* *"), "five fields"),
        (("add", "a", "note", "60", "--args", "{}"), "--args must be a JSON list"),
        (("add", "a", "note", "60", "--kwargs", "x"), "--kwargs is no JSON"),
        (("add", "a", "note", "60", "--timing", '{"tzz": "UTC"}'), "did you mean 'tz'"),
    ],
)
def test_what_is_wrong_is_said(command: Command, args: tuple[str, ...], message: str) -> None:
    result = command(*args)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


class TestRedBeat:
    @pytest.fixture(autouse=True)
    def entries(self, command: Command, broker_client: redis.Redis) -> None:
        """What RedBeat 2.3 writes."""
        crontab = {
            "__type__": "crontab",
            "minute": "*/5",
            "hour": "8-17",
            "day_of_week": "mon-fri",
            "day_of_month": "*",
            "month_of_year": "*",
        }
        interval = {"__type__": "interval", "every": 30.0, "relative": False}
        schedules = {"cron": crontab, "often": interval, "rare": {"__type__": "rrule", "freq": 1}, "static": interval}
        for name, schedule in schedules.items():
            definition = {
                "name": name,
                "task": "note",
                "args": [1],
                "kwargs": {},
                "options": {"queue": "q"},
                "schedule": schedule,
                "enabled": name != "often",
            }
            broker_client.hset(f"redbeat:{name}", "definition", json.dumps(definition))
            broker_client.zadd("redbeat::schedule", {f"redbeat:{name}": 1})
        broker_client.zadd("redbeat::schedule", {"redbeat:gone": 1})
        broker_client.sadd("redbeat::statics", "static")

    def test_is_a_dry_run_at_first(self, command: Command) -> None:
        output = well(command("import-redbeat"))
        assert "2 entries to add" in output
        assert "rare: left out: a schedule of type 'rrule'" in output.replace("periodic task 'rare': ", "")
        assert "gone: left out: it has no definition" in output
        assert "static: left out: it is in the configuration" in output
        assert well(command("list", "--json")) == ""

    def test_adds_the_same_entries(self, command: Command) -> None:
        assert "2 entries added" in well(command("import-redbeat", "--apply"))
        found = {entry["name"]: entry for entry in map(json.loads, well(command("list", "--json")).splitlines())}
        assert found["cron"]["schedule"] == {"crontab": "*/5 8-17 * * mon-fri"}
        assert found["cron"]["options"] == {"queue": "q"}
        assert found["often"]["schedule"] == {"every": 30.0}
        assert found["often"]["timing"] == {"enabled": False}

    def test_twice_adds_nothing_more(self, command: Command) -> None:
        well(command("import-redbeat", "--apply"))
        assert "0 entries added" in well(command("import-redbeat", "--apply"))

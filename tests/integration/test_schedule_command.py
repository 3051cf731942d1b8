"""`celery -A app delayq schedule`: what people do with periodic tasks on the command line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import redis
from celery import Celery
from click.testing import Result

from celery_delayq.schedule.records import Record, State
from celery_delayq.schedule.store import ScheduleStore
from tests.integration.commands import delayq
from tests.state import FAR
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster

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


def test_run_now_with_arguments_that_do_not_fit(command: Command) -> None:
    well(command("add", "wrong", "add", "1h", "--args", "[1]"))
    result = command("run-now", "wrong")
    assert (result.exit_code, "Error: cannot send wrong: " in result.output) == (1, True)


def test_an_entry_is_added_seen_and_removed(command: Command) -> None:
    args = ("--args", "[42]", "--options", '{"priority": 3}', "--timing", '{"tz": "Europe/Berlin"}')
    assert "report added" in well(command("add", "report", "note", "0 6 * * mon-fri", *args))
    assert "0 6 * * mon-fri (Europe/Berlin)" in well(command("list"))
    (line,) = well(command("list", "--json")).splitlines()
    assert json.loads(line)["args"] == [42]
    assert json.loads(well(command("show", "report", "--json")))["timing"] == {"tz": "Europe/Berlin"}
    well(command("update", "report", "--when", "1h30m", "--timing", '{"tz": null, "max_runs": 3}'))
    changed = json.loads(well(command("show", "report", "--json")))
    assert (changed["schedule"], changed["timing"]) == ({"every": 5400.0}, {"max_runs": 3})
    assert changed["args"] == [42]
    assert "paused" in well(command("pause", "report"))
    assert re.search(r"^status +paused *$", well(command("show", "report")), re.MULTILINE)
    well(command("resume", "report"))
    well(command("remove", "report"))
    assert well(command("list", "--json")) == ""
    assert "appear once a planner has started" in well(command("list"))


def test_tasks_that_are_found_by_autodiscover_are_known(
    broker_url: str, ledger_url: str, broker_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery imports their modules late, in workers: with Django, all tasks are in such modules."""
    broker_client.flushall()
    package = tmp_path / f"shop_of_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").touch()
    source = "from . import app\n\n@app.task(name='found_late', shared=False)\ndef found_late(): ...\n"
    (package / "tasks.py").write_text(source)
    (package / "broken.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with publisher(broker_url, ledger_url) as app:
        import_module(package.name).app = app  # type: ignore[attr-defined]
        app.autodiscover_tasks([package.name])
        assert "has no task" not in well(delayq(app, "schedule", "add", "late", "found_late", "60"))
        assert "unknown task" not in well(delayq(app, "schedule", "list"))

        app.autodiscover_tasks([package.name], related_name="broken")
        warning = "cannot import all tasks of the app: ModuleNotFoundError: No module named 'no_such_package'"
        assert warning in well(delayq(app, "schedule", "list"))


@pytest.mark.parametrize("args", [("add", "new", "note", "60"), ("update", "old", "--when", "60"), ("resume", "old")])
@pytest.mark.parametrize("scheduler", [None, "celery_delayq.beat:Scheduler"])
def test_it_warns_if_workers_of_the_app_do_not_plan(
    app: Celery, command: Command, args: tuple[str, ...], scheduler: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    well(command("add", "old", "note", "60"))
    if scheduler is not None:
        monkeypatch.setitem(app.conf, "beat_scheduler", scheduler)
    warned = 'set beat_scheduler = "celery_delayq.beat:Scheduler"' in well(command(*args))
    assert warned is (scheduler is None)


@pytest.mark.parametrize(
    ("task", "options", "status"),
    [
        ("note", (), "not seen by a planner"),
        ("note", ("--timing", '{"enabled": false}'), "disabled"),
        ("nobody", (), "unknown task"),
    ],
)
def test_why_an_entry_does_not_run_is_its_status(
    command: Command, task: str, options: tuple[str, ...], status: str
) -> None:
    well(command("add", "e", task, "60", *options))
    assert re.search(rf"^status +{status} *$", well(command("show", "e")), re.MULTILINE)


def test_an_entry_whose_time_is_past_is_late(app: Celery, command: Command, broker_client: redis.Redis) -> None:
    """For example because a full server refuses to plan it, and to store the error."""
    store = ScheduleStore(broker_client)
    for name, past_s in (("late", 20), ("planned", 2)):
        well(command("add", name, "note", "60"))
        raw = store.record(name)
        assert store.write_record(name, raw, replace(Record.parse(raw), queue="celery"))
        state = State("f", "planner", round((time.time() - past_s) * 1000), "id")
        broker_client.hset(store.queue("celery").keys.schedule, name, state.dump())
    assert [entry.status for entry in app.delayq.schedule] == ["late", "planned"]


@pytest.mark.parametrize(
    ("when", "schedule"),
    [
        ("2.5", {"every": 2.5}),
        ("90s", {"every": 90}),
        ("1h30m", {"every": 5400}),
        ("every 3s", {"every": 3}),
        ("Every 1h 30m", {"every": 5400}),
        ("every 5 minutes", {"every": 300}),
        ("every 1 Hour 30 minutes", {"every": 5400}),
        ("every 2 days", {"every": 172_800}),
        ("every minute", {"every": 60}),
        ("every Hour", {"every": 3600}),
        ("every day", {"every": 86_400}),
        ("@hourly", {"crontab": "0 * * * *"}),
        ("@daily", {"crontab": "0 0 * * *"}),
        ("@midnight", {"crontab": "0 0 * * *"}),
        ("@weekly", {"crontab": "0 0 * * 0"}),
        ("@monthly", {"crontab": "0 0 1 * *"}),
        ("@Yearly", {"crontab": "0 0 1 1 *"}),
        ("@annually", {"crontab": "0 0 1 1 *"}),
    ],
)
def test_a_schedule_is_written_in_the_same_words_in_a_command_and_in_python(
    app: Celery, command: Command, when: str, schedule: dict[str, object]
) -> None:
    well(command("add", "often", "note", when))
    app.delayq.schedule.add("too", "note", when)
    for name in ("often", "too"):
        assert json.loads(well(command("show", name, "--json")))["schedule"] == schedule


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("61 * * * *", "minute '61': Invalid end range: 61 > 59"),
        ("* 25 * * *", "hour '25': "),
        ("* * 32 * *", "day of month '32': "),
        ("* * * 13 *", "month of year '13': "),
        ("* * * * someday", "day of week 'someday': "),
    ],
)
def test_an_error_of_a_crontab_names_the_field(command: Command, line: str, field: str) -> None:
    assert f"'{line}' is not a valid schedule: {field}" in command("add", "a", "note", line).output


@pytest.mark.parametrize(
    ("when", "shown"), [("2.5", "every 2.5s"), ("3600", "every 1h"), ("1h30m5s", "every 1h 30m 5s"), ("7d", "every 7d")]
)
def test_intervals_are_shown_in_one_way(app: Celery, command: Command, when: str, shown: str) -> None:
    well(command("add", "often", "note", when))
    assert f" {shown} " in well(command("list"))
    assert well(command("show", "often")).partition("schedule")[2].split("\n")[0].strip() == shown
    assert f"'note' '{shown}': " in repr(app.delayq.schedule["often"])
    before = app.delayq.schedule["often"].schedule
    well(command("update", "often", "--when", shown))
    assert app.delayq.schedule["often"].schedule == before


@pytest.mark.parametrize("options", ["{}", '{"countdown": 600}', '{"eta": "2100-01-01T00:00:00+00:00"}'])
def test_run_now_sends_what_may_run_at_once(command: Command, broker_client: redis.Redis, options: str) -> None:
    well(command("add", "often", "note", "3600", "--options", options))
    well(command("run-now", "often"))
    assert broker_client.llen("celery") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "nothing"), "no periodic task 'nothing'"),
        (("add", "a", "note", "* *"), "five fields"),
        (("add", "a", "note", "each 5s"), "'each 5s' is neither an interval"),
        (("add", "a", "note", "every other day"), "'every other day' is neither an interval"),
        (("add", "a", "note", "every 5 4"), "'every 5 4' is neither an interval"),
        (("add", "a", "note", "60", "--args", "{}"), "'--args': must be a JSON list"),
        (("add", "a", "note", "60", "--kwargs", "x"), "'--kwargs': not valid JSON"),
        (("add", "a", "note", "60", "--timing", '{"tzz": "UTC"}'), "did you mean 'tz'"),
        (("add", "a", "note", "60", "--timing", '{"name": "b"}'), "unknown option 'name'"),
        (
            ("add", "a", "note", "@reboot"),
            "'@reboot' is neither an interval (every 1h 30m, every 5 minutes, 90s) nor a",
        ),
        (("add", "a", "note", "1e300"), "neither an interval"),
        (("update", "nothing", "--when", "60"), "no periodic task 'nothing'"),
        (("update", "nothing"), "nothing to change"),
        (("remove", "\udcff"), "no periodic task '\\udcff'"),
        (("add", "a", "ntoe", "60"), "unknown task 'ntoe': did you mean 'note'?"),
        (("update", "a", "--task", "ntoe"), "unknown task 'ntoe': did you mean 'note'?"),
    ],
)
def test_what_is_wrong_is_said(command: Command, args: tuple[str, ...], message: str) -> None:
    result = command(*args)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_names_are_shown_as_they_are(command: Command) -> None:
    """Neither markup nor control characters come from them."""
    name = "a [bold]b[/c]\n\x1b[31m"
    well(command("add", name, "note", "60"))
    for shown in (well(command("list")), well(command("show", name))):
        assert "a [bold]b[/c]\\n\\x1b[31m" in shown


def test_an_entry_of_the_configuration_that_is_wrong_is_shown(command: Command, broker_client: redis.Redis) -> None:
    broker_client.hset(ScheduleStore(broker_client).keys.errors, "bad", "max_runs must be more")
    assert "max_runs must be more" in well(command("show", "bad"))
    said = "periodic task 'bad' is in the configuration, and cannot be planned: max_runs must be more. Correct it there"
    for action in ("pause", "remove", "run-now"):
        assert said in command(action, "bad").output


class TestWhatOthersWrote:
    @pytest.fixture(autouse=True)
    def entries(self, command: Command, broker_client: redis.Redis) -> None:
        """One whose state cannot be read, one of the wrong shape, and one that cannot be read at all."""
        well(command("add", "good", "note", "60"))
        record = json.loads(broker_client.hget("delayq:schedule", "good"))
        broker_client.hset("delayq:schedule", "good", json.dumps({**record, "queue": "celery"}))
        broker_client.zadd("delayq:queues", {"celery": FAR})
        odd = {"fingerprint": "f", "since_ms": 1, "definition": {"timing": 5, "options": [], "schedule": {"x": 1}}}
        broker_client.hset("delayq:schedule", mapping={"junk": "{", "odd": json.dumps(odd)})
        broker_client.hset("delayq:schedule:{celery}", mapping={"good": "junk"})

    def test_it_is_listed_with_its_error(self, command: Command) -> None:
        found = {entry["name"]: entry for entry in map(json.loads, well(command("list", "--json")).splitlines())}
        assert found.keys() == {"good", "junk", "odd"}
        assert "not a valid record" in found["junk"]["error"]
        assert "not a valid state" in found["good"]["error"]
        assert "junk" in well(command("list"))

    @pytest.mark.parametrize("action", ["show", "pause", "resume", "run-now"])
    def test_it_is_an_error_that_says_what_to_do(self, command: Command, action: str) -> None:
        result = command(action, "junk")
        assert "call remove()" in result.output
        assert isinstance(result.exception, SystemExit)

    def test_it_can_be_removed(self, command: Command) -> None:
        well(command("remove", "junk"))
        assert "junk" not in well(command("list"))

    def test_an_entry_whose_state_cannot_be_read_can_be_paused(
        self, command: Command, broker_client: redis.Redis
    ) -> None:
        well(command("pause", "good"))
        assert not broker_client.hget("delayq:schedule:{celery}", "good")

    def test_a_key_of_another_type_is_named(self, command: Command, broker_client: redis.Redis) -> None:
        broker_client.delete("delayq:schedule")
        broker_client.set("delayq:schedule", "no HASH")
        for args in (("list",), ("show", "good"), ("add", "good", "note", "60")):
            assert "delayq:schedule is not a HASH" in command(*args).output


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
        assert "2 entries can be added" in output
        assert "rare: skipped: schedules of type 'rrule'" in output.replace("periodic task 'rare': ", "")
        assert "gone: skipped: it has no definition" in output
        assert "static: skipped: it is in the configuration" in output
        assert well(command("list", "--json")) == ""

    def test_adds_the_same_entries(self, command: Command) -> None:
        assert "2 entries added" in well(command("import-redbeat", "--apply"))
        found = {entry["name"]: entry for entry in map(json.loads, well(command("list", "--json")).splitlines())}
        assert found["cron"]["schedule"] == {"crontab": "*/5 8-17 * * mon-fri"}
        assert found["cron"]["options"] == {"queue": "q"}
        assert found["often"]["schedule"] == {"every": 30.0}
        assert found["often"]["timing"] == {"enabled": False}

    def test_what_planners_have_themselves_is_left_out(
        self, command: Command, app: Celery, broker_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An entry added at run time would be an error of that of the configuration at each start."""
        monkeypatch.setitem(app.conf, "beat_schedule", {"mine": {"task": "note", "schedule": 60}})
        given = {"task": "note", "schedule": {"__type__": "interval", "every": 30.0}}
        for name in ("mine", "celery.backend_cleanup"):
            broker_client.hset(f"redbeat:{name}", "definition", json.dumps(given))
            broker_client.zadd("redbeat::schedule", {f"redbeat:{name}": 1})
        output = well(command("import-redbeat", "--apply"))
        assert "mine: skipped: it is in the configuration" in output
        assert "celery.backend_cleanup: skipped: planners add it themselves" in output
        assert "2 entries added" in output

    def test_what_cannot_be_moved_is_left_out_with_the_reason(
        self, command: Command, broker_client: redis.Redis
    ) -> None:
        interval = {"__type__": "interval", "every": 30.0}
        moment = {"__type__": "datetime", "year": 2030, "month": 1, "day": 1}
        junk = {"cut": "{", "list": "[]", "bare": "{}", "odd": json.dumps({"task": "note", "schedule": 5})}
        junk["moment"] = json.dumps({"task": "note", "schedule": interval, "kwargs": {"at": [moment]}})
        for name, definition in junk.items():
            broker_client.hset(f"redbeat:{name}", "definition", definition)
        broker_client.set("redbeat:string", "no HASH")
        broker_client.zadd("redbeat::schedule", {f"redbeat:{name}": 1 for name in (*junk, "string")})
        output = well(command("import-redbeat", "--apply"))
        for name in (*junk, "string"):
            assert f"- {name}: skipped: " in output
        assert "moment: skipped: its arguments or options are not JSON types" in output
        assert "2 entries added" in output

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("--prefix", "other:"), "no RedBeat entries under other::schedule"),
            (("--url", "http://x"), "--url"),
            (("--url", "redis://:secret@127.0.0.1:1"), "RedBeat"),
        ],
    )
    def test_a_wrong_place_is_named(self, command: Command, args: tuple[str, str], message: str) -> None:
        result = command("import-redbeat", *args)
        assert message in result.output
        assert "secret" not in result.output
        assert result.exit_code != 0
        assert isinstance(result.exception, SystemExit)

    def test_twice_adds_nothing_more(self, command: Command) -> None:
        well(command("import-redbeat", "--apply"))
        assert "0 entries added" in well(command("import-redbeat", "--apply"))

"""`celery delayq list` and `show`."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from rich.console import Console

from celery_delayq import DelayedQueue
from celery_delayq.cli import schedule
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.schedule.service import store_of
from tests.cli.running import Command, failed, is_wrong_use
from tests.integration.publishing import SOON, publish
from tests.state import fill, nothing_changes, offer

pytestmark = pytest.mark.on_cluster(always=True)

#: What docs/cli.md promises of a task.
KEYS = {
    "state",
    "id",
    "name",
    "args",
    "kwargs",
    "due",
    "time_left",
    "queue",
    "priority",
    "broker_list",
    "retries",
    "eta",
    "expires",
    "root_id",
    "parent_id",
    "group_id",
    "size",
    "content_type",
    "offered",
    "headers",
}


class TestList:
    def test_json_has_the_documented_keys_in_due_order(self, app: Celery, command: Command) -> None:
        later, sooner = publish(app, seconds=1), publish(app, queue="other", priority=3, args=(1,))
        rows = command("list", "--json").json()
        assert [row["id"] for row in rows] == [sooner, later]
        assert all(row.keys() == KEYS for row in rows)
        first = rows[0]
        assert (first["name"], first["args"], first["queue"], first["priority"]) == ("note", "(1,)", "other", 3)
        assert first["due"] == SOON.isoformat()

    def test_a_table_shows_ids_whole_and_cuts_arguments(self, app: Celery, command: Command) -> None:
        task_id = publish(app, args=("x" * 500,))
        heading, _, row = command("list").stdout.splitlines()
        assert heading.split() == ["due", "(UTC)", "left", "id", "task", "args", "queue", "prio"]
        assert row.startswith("2040-01-01 00:00:00  ")
        assert all(part in row for part in (task_id, "note", "('xxxx", "…", "celery"))
        assert len(row) == 120

    def test_what_tasks_bring_along_cannot_dress_up(self, app: Celery, command: Command) -> None:
        publish(app, argsrepr="[red]\x1b[31m\r\n", task_id="[bold]id")
        output = command("list").stdout
        assert r"[red]\x1b[31m\r\n" in output
        assert "[bold]id" in output

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            (["--queue", "other"], ["note1"]),
            (["--task", "add"], ["add2"]),
            (["--due-after", "2040-01-01T00:00:01"], ["note1", "add2"]),
            (["--due-after", "2040-01-01T09:00:01+09:00"], ["note1", "add2"]),
            (["--due-before", "2040-01-01T00:00:01Z"], ["note0"]),
            (["--due-before", "1h"], []),
            (["--due-after", "-1h", "--task", "note"], ["note0", "note1"]),
            (["--limit", "3"], ["note0", "note1", "add2"]),
            (["--text", "(1, 2"], ["add2"]),
            (["--text", "(1, 2", "--task", "note"], []),
        ],
    )
    def test_filters(self, app: Celery, command: Command, options: list[str], found: list[str]) -> None:
        publish(app, task_id="note0")
        publish(app, seconds=1, task_id="note1", queue="other")
        publish(app, "add", seconds=2, task_id="add2", args=(1, 2))
        assert [row["id"] for row in command("list", "--json", *options).json()] == found

    def test_the_cursor_goes_on(self, app: Celery, command: Command) -> None:
        published = [publish(app, seconds=number) for number in range(5)]
        *first, more = command("list", "--json", "--limit", 3).json()
        assert more.keys() == {"cursor"}
        rest = command("list", "--json", "--limit", 3, "--cursor", more["cursor"]).json()
        assert [row["id"] for row in (*first, *rest)] == published

    def test_a_table_says_how_to_go_on(self, app: Celery, command: Command) -> None:
        for _ in range(2):
            publish(app)
        done = command("list", "--limit", 1)
        assert "There may be more tasks: continue with --cursor " in done.stderr
        assert command("list", "--limit", 2).stderr == ""

    def test_thousands(self, waiting: DelayedQueue, command: Command) -> None:
        fill(waiting, 2500)
        assert len(command("list", "--all", "--json").json()) == 2500
        assert len(command("list", "--limit", 1500, "--json").json()) == 1500 + 1
        heading = "due (UTC)"
        table = command("list", "--all").stdout
        assert len(table.splitlines()) - 2 * table.count(heading) == 2500

    def test_nothing_is_no_error(self, command: Command) -> None:
        done = command("list")
        assert (done.code, done.stdout, done.stderr) == (0, "", "No waiting tasks match.\n")
        assert command("list", "--json").json() == []

    def test_what_is_no_task_is_shown(self, waiting: DelayedQueue, command: Command) -> None:
        offer(waiting, "bytes", payload=b"\xff")
        (row,) = command("list", "--json").json()
        assert (row["id"], row["name"], row["size"]) == (None, None, 1)
        assert "  -  " in command("list").stdout

    @pytest.mark.parametrize("command_line", [["list"], ["cancel", "--yes"], ["cancel", "--dry-run"]])
    @pytest.mark.parametrize("option", ["--due-before", "--due-after"])
    def test_a_time_that_is_none(self, command: Command, command_line: list[str], option: str) -> None:
        is_wrong_use(
            command(*command_line, option, "soon"), f"'{option}': cannot parse 'soon' as a time", "+30m, 2h, -15m"
        )
        is_wrong_use(command(*command_line, option, "99999999d"), "the time must be in the years 1 to 9999")
        is_wrong_use(command(*command_line, option, "9999-12-31T23:59:59-23:59"), "must be before the year 10000")

    def test_wrong_numbers_and_cursors(self, command: Command) -> None:
        is_wrong_use(command("list", "--limit", 0), "--limit")
        is_wrong_use(command("list", "--text", ""), "text must not be empty")
        is_wrong_use(command("list", "--cursor", "nonsense"), "must be the cursor of a page, not 'nonsense'")


class TestReady:
    def test_the_tasks_in_the_queues(self, app: Celery, command: Command) -> None:
        publish(app)
        first, second = (app.tasks["note"].apply_async(queue="other").id for _ in range(2))
        rows = command("list", "--state", "ready", "--json").json()
        assert [(row["id"], row["state"], row["queue"]) for row in rows] == [
            (first, "ready", "other"),
            (second, "ready", "other"),
        ]
        assert all(row.keys() == KEYS for row in rows)
        done = command("list", "--state", "ready", "--limit", "1")
        assert first in done.stdout
        assert second not in done.stdout
        assert "No ready tasks match." in command("list", "--state", "ready", "--task", "nobody").stderr
        is_wrong_use(command("list", "--state", "running"), "'running' is not one of 'delayed', 'ready'")

    def test_one_of_them(self, app: Celery, command: Command) -> None:
        task_id = app.tasks["note"].delay().id
        (shown,) = command("show", task_id, "--ready", "--json").json()
        assert (shown["id"], shown["state"]) == (task_id, "ready")
        assert (
            f"To cancel it: `celery -A ... delayq cancel {task_id} --ready`"
            in command("show", task_id, "--ready").stderr
        )
        failed(command("show", "nobody", "--ready"), "task nobody is neither waiting nor in a queue", "a worker has it")


class TestShow:
    def test_all_fields_and_the_body(self, app: Celery, waiting: DelayedQueue, command: Command) -> None:
        task_id = publish(app, args=("é" * 2000,), expires=SOON + timedelta(days=1))
        with nothing_changes(waiting.client):
            (shown,) = command("show", task_id, "--json", "--body").json()
        assert shown.keys() == KEYS | {"body"}
        assert shown["body"][0] == ["é" * 2000]
        assert len(shown["args"]) < 2000
        assert shown["expires"] == (SOON + timedelta(days=1)).isoformat()
        table = command("show", task_id, "--body").stdout
        assert all(name in table for name in (shown.keys() - {"offered"}) | {"enqueued"})
        assert f'root_id: "{task_id}"' in table

    def test_what_is_hidden_from_logs_is_hidden(self, app: Celery, command: Command) -> None:
        task_id = publish(app, args=("s3cret",), argsrepr="(<hidden>)")
        (shown,) = command("show", task_id, "--json").json()
        assert shown.keys() == KEYS
        assert "(<hidden>)" in (output := command("show", task_id).stdout)
        assert "s3cret" not in output

    def test_a_pickled_body_stays_closed(self, app: Celery, command: Command) -> None:
        task_id = publish(app, args=({1},), serializer="pickle")
        (shown,) = command("show", task_id, "--json", "--body").json()
        assert shown["body"] is None
        assert (shown["content_type"], shown["args"]) == ("application/x-python-serialize", "({1},)")
        assert shown["headers"]["id"] == task_id

    def test_a_compressed_body_stays_closed(self, app: Celery, command: Command) -> None:
        task_id = publish(app, args=(1,), compression="gzip")
        (shown,) = command("show", task_id, "--json", "--body").json()
        assert shown["body"] is None

    def test_no_such_task(self, app: Celery, command: Command) -> None:
        ready = app.tasks["note"].delay().id
        for task_id in (ready, "nobody"):
            failed(
                command("show", task_id),
                f"task {task_id} is not waiting",
                "in its queue",
                "have run",
                "been cancelled",
                "--ready looks there",
            )
            assert "Java" not in command("show", task_id).stderr
            assert command("show", task_id, "--json").stdout == ""


def test_json_is_ascii_and_one_line_each(app: Celery, command: Command) -> None:
    publish(app, argsrepr="line\nbreak\u2028é")
    (line,) = command("list", "--json").stdout.splitlines()
    assert line.isascii()
    assert json.loads(line)["args"] == "line\nbreak\u2028é"


@pytest.mark.parametrize("length", [30, 60, 200])
def test_names_of_periodic_tasks_are_whole(command: Command, length: int) -> None:
    name = "n" * length
    task = "a.module.of_some_length.a_task_of_some_length"
    command("schedule", "add", name, task, "0 6 * * mon-fri")
    listed = command("schedule", "list").stdout
    assert name in listed
    assert task in listed


@pytest.mark.parametrize(("width", "missing"), [(150, set()), (120, {"runs"}), (80, {"runs", "left"})])
def test_names_schedules_and_words_are_whole_in_a_table_of_periodic_tasks(width: int, missing: set[str]) -> None:
    when = "30 6 * * mon-fri", "(Europe/Berlin)", "every 1h 30m"
    entries = [
        PeriodicTask(
            "celery.backend_cleanup", "celery.backend_cleanup", {"crontab": when[0]}, timing={"tz": "Europe/Berlin"}
        ),
        PeriodicTask(
            "stock-north", "shop.sync_stock", {"every": 5400}, queue="celery", next_run=datetime.now(timezone.utc)
        ),
    ]
    out = Console(width=width, file=io.StringIO())
    out.print(schedule.table_of(entries, width))
    shown = out.file.getvalue()
    assert {"runs", "left"} - set(shown.split()) == missing
    for whole in ("celery.backend_cleanup", "sync_stock" if width == 80 else "shop.sync_stock", *when):
        assert whole in shown
    assert {"not", "seen", "by", "a", "planner", "planned"} <= set(shown.split())


def test_errors_of_periodic_tasks_are_below_the_table(app: Celery, command: Command) -> None:
    error = "a long error, which would be many lines in the last column of the table " * 3
    with app.connection() as connection:
        store_of(connection.default_channel).set_error("bad", error)
    table, _, below = command("schedule", "list").stdout.partition("error")
    assert "bad" in table
    assert below.split("\n")[1:] == [f"bad: {error}", ""]


def test_a_misspelt_task_is_an_error_if_nothing_waits_for_it(app: Celery, command: Command) -> None:
    done = command("list", "--task", "ntoe", "--json")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr == "Error: unknown task 'ntoe': did you mean 'note'?\n"
    app.send_task("ntoe", countdown=60)
    assert len(command("list", "--task", "ntoe", "--json").json()) == 1
    assert command("list", "--task", "billing.charge").stderr == "No waiting tasks match.\n"

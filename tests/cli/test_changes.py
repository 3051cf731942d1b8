"""`celery delayq cancel`, `reschedule` and `run-now`."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_ms
from celery_delayq.queue import codec
from tests.cli.running import Command, is_wrong_use
from tests.integration.publishing import SOON, publish, ready
from tests.state import FAR, nothing_changes, now_ms

pytestmark = pytest.mark.on_cluster(always=True)


def left(app: Celery) -> list[str]:
    """The ids of what waits, in due order."""
    return [task.id for task in app.delayq.iter_scheduled()]


class TestCancel:
    def test_by_ids(self, app: Celery, command: Command) -> None:
        kept, *others = (publish(app, seconds=number) for number in range(3))
        done = command("cancel", *others)
        assert (done.code, done.stdout, done.stderr) == (0, "2 tasks cancelled.\n", "")
        assert left(app) == [kept]

    @pytest.mark.parametrize(
        "verb", [["cancel"], ["run-now"], ["reschedule", "--countdown", "1h"], ["update", "--priority", "9"]]
    )
    def test_an_id_that_does_not_wait_stops_no_other(self, app: Celery, command: Command, verb: list[str]) -> None:
        task_id = publish(app)
        done = command(*verb, "nobody", task_id, "--json")
        assert done.code == 1
        assert done.lines() == [{"id": "nobody", "done": False}, {"id": task_id, "done": True}]
        assert done.stderr.startswith("Error: task nobody is not waiting: it may be in its queue")
        assert ("--ready" in done.stderr) == (verb == ["cancel"])

    def test_hundreds(self, app: Celery, command: Command) -> None:
        ids = [publish(app) for _ in range(250)]
        assert command("cancel", *ids, ids[0]).stdout == "250 tasks cancelled.\n"
        assert left(app) == []

    def test_by_filters(self, app: Celery, command: Command) -> None:
        publish(app, queue="other")
        publish(app, "add", queue="other", args=(1, 2))
        kept = publish(app)
        assert command("cancel", "--queue", "other", "--task", "add", "--yes").stdout == "1 task cancelled.\n"
        assert command("cancel", "--text", "nobody", "--yes").stdout == "0 tasks cancelled.\n"
        assert command("cancel", "--due-before", SOON.isoformat(), "--yes").stdout == "0 tasks cancelled.\n"
        (told,) = command("cancel", "--queue", "other", "--yes", "--json").json()
        assert told == {"cancelled": 1, "matched": 1, "dry_run": False}
        assert left(app) == [kept]
        assert command("cancel", "--all", "--yes").code == 0
        assert left(app) == []

    def test_a_dry_run_only_counts(self, app: Celery, command: Command, waiting: DelayedQueue) -> None:
        publish(app)
        with nothing_changes(waiting.client):
            assert command("cancel", "--task", "note", "--dry-run").stdout == "1 task would be cancelled.\n"
            (told,) = command("cancel", "--all", "--dry-run", "--json").json()
        assert told == {"cancelled": 0, "matched": 1, "dry_run": True}

    @pytest.mark.parametrize("options", [["--yes"], ["--dry-run"], []])
    def test_nothing_that_matches(self, command: Command, options: list[str]) -> None:
        done = command("cancel", "--task", "nobody", *options)
        assert done.code == 1
        assert done.stdout.startswith("0 tasks ")

    @pytest.mark.parametrize("chosen", [["--all"], ["--queue", "celery"], ["--due-before", "9999-01-01"]])
    def test_without_a_terminal_it_wants_yes(
        self, app: Celery, command: Command, waiting: DelayedQueue, chosen: list[str]
    ) -> None:
        publish(app)
        with nothing_changes(waiting.client):
            is_wrong_use(command("cancel", *chosen), "Cancel 1 task for good?", "pass --yes")

    @pytest.mark.parametrize(
        "arguments", [[], ["--yes"], ["an-id", "--all"], ["an-id", "--task", "note"], ["--all", "--queue", "celery"]]
    )
    def test_one_says_which(self, app: Celery, command: Command, arguments: list[str]) -> None:
        publish(app, task_id="an-id")
        is_wrong_use(command("cancel", *arguments), "give either task ids, or filters", "or --all")
        assert left(app) == ["an-id"]

    def test_tasks_in_their_queues(self, app: Celery, command: Command, waiting: DelayedQueue) -> None:
        waits, *tasks = publish(app), *(app.tasks["note"].delay().id for _ in range(3))
        assert command("cancel", tasks[0]).code == 1
        assert command("cancel", tasks[0], waits, "--ready").stdout == "2 tasks cancelled.\n"
        done = command("cancel", tasks[0], "--ready")
        assert done.code == 1
        assert done.stderr.startswith(f"Error: task {tasks[0]} is neither waiting nor in a queue: a worker has it")
        assert command("cancel", "--task", "note", "--yes").stdout == "0 tasks cancelled.\n"
        with nothing_changes(waiting.client):
            done = command("cancel", "--task", "note", "--ready", "--dry-run")
            assert done.stdout == "2 tasks would be cancelled.\n"
        assert command("cancel", "--all", "--ready", "--yes").stdout == "2 tasks cancelled.\n"
        assert list(app.delayq.scheduled(state="ready")) == []

    def test_a_dry_run_is_for_filters(self, command: Command) -> None:
        is_wrong_use(command("cancel", "an-id", "--dry-run"), "--dry-run works only with filters")


class TestReschedule:
    @pytest.mark.parametrize("option", ["--countdown", "--eta"])
    @pytest.mark.parametrize("value", ["90m", "1h30m"])
    def test_relative(self, app: Celery, waiting: DelayedQueue, command: Command, option: str, value: str) -> None:
        task_id = publish(app)
        before = now_ms(waiting.client)
        assert command("reschedule", task_id, option, value).stdout == "1 task rescheduled.\n"
        assert before <= to_ms(app.delayq.get(task_id).due, "due") - 5_400_000 <= now_ms(waiting.client)

    @pytest.mark.parametrize("eta", ["2041-02-03T04:05:06", "2041-02-03T13:05:06+09:00", "2041-02-03T04:05:06Z"])
    def test_to_a_time(self, app: Celery, command: Command, eta: str) -> None:
        ids = [publish(app), publish(app, queue="other")]
        rows = command("reschedule", *ids, "--eta", eta, "--json").json()
        assert rows == [{"id": task_id, "done": True} for task_id in ids]
        assert {task.due.isoformat() for task in app.delayq.scheduled()} == {"2041-02-03T04:05:06+00:00"}

    @pytest.mark.parametrize("time", [["--eta", "-1m"], ["--countdown", "0"], ["--countdown", "-5"]])
    def test_what_is_past_is_moved_at_once(
        self, app: Celery, waiting: DelayedQueue, command: Command, time: list[str]
    ) -> None:
        task_id = publish(app)
        assert command("reschedule", task_id, *time).code == 0
        assert [message["headers"]["id"] for message in ready(waiting.client)] == [task_id]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ([], "give either --countdown or --eta"),
            (["--countdown", "1", "--eta", "1h"], "give either --countdown or --eta"),
            (["--countdown", "soon"], "cannot parse 'soon' as a span of time: write seconds, or 90s, 30m"),
            (["--countdown", "nan"], "cannot parse 'nan' as a span of time"),
            (["--countdown", "1e300"], "cannot parse '1e300' as a span of time"),
            (["--countdown", "9999999d"], "the time must be in the years 1 to 9999"),
            (["--eta", "tomorrow"], "cannot parse 'tomorrow' as a time"),
            (["--eta", "1700000000"], "cannot parse '1700000000' as a time"),
            (["--eta", "2040-02-30"], "cannot parse '2040-02-30' as a time"),
        ],
    )
    def test_times_that_are_none(self, app: Celery, command: Command, options: list[str], words: str) -> None:
        task_id = publish(app)
        is_wrong_use(command("reschedule", task_id, *options), words)
        assert app.delayq.get(task_id).due - SOON == timedelta(0)


def test_run_now(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    ids = [publish(app), publish(app)]
    assert command("run-now", *ids).stdout == "2 tasks queued.\n"
    assert [message["headers"]["id"] for message in ready(waiting.client)] == ids
    again = command("run-now", *ids)
    assert again.code == 1
    assert again.stderr.count("is not waiting: it may be in its queue") == 2


class TestUpdate:
    def test_arguments_and_priority(self, app: Celery, command: Command) -> None:
        ids = [publish(app, args=(number,)) for number in range(2)]
        done = command("update", *ids, "--args", '["new"]', "--priority", "9")
        assert (done.code, done.stdout, done.stderr) == (0, "2 tasks updated.\n", "")
        assert command("update", ids[0], "--args", "[]", "--kwargs", '{"value": 1}').code == 0
        found = {task.id: task for task in app.delayq.iter_scheduled()}
        assert [(found[one].args_text, found[one].kwargs_text, found[one].priority) for one in ids] == [
            ("()", "{'value': 1}", 9),
            ("('new',)", "{}", 9),
        ]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ([], "give --args, --kwargs or --priority"),
            (["--args", "{}"], "must be a JSON list"),
            (["--kwargs", "x"], "--kwargs"),
            (["--priority", "10"], "--priority"),
            (["--args", "[1, 2, 3]"], "positional arguments"),
        ],
    )
    def test_what_is_wrong(
        self, app: Celery, command: Command, waiting: DelayedQueue, options: list[str], said: str
    ) -> None:
        task_id = publish(app)
        with nothing_changes(waiting.client):
            is_wrong_use(command("update", task_id, *options), said)


#: Each command, its question, what it says of one task, and the name of its number in JSON.
COMMANDS = [
    (["cancel"], "Cancel 1 task for good?", "cancelled", "cancelled"),
    (
        ["reschedule", "--eta", "2041-02-03"],
        "Reschedule 1 task to 2041-02-03 00:00:00 UTC?",
        "rescheduled",
        "rescheduled",
    ),
    (["run-now"], "Queue 1 task now?", "queued", "moved"),
]


@pytest.mark.parametrize(("verb", "question", "done", "name"), COMMANDS)
class TestAllThatMatch:
    """The three commands have the same filters and options."""

    def test_are_changed(
        self, app: Celery, waiting: DelayedQueue, command: Command, verb: list[str], question: str, done: str, name: str
    ) -> None:
        kept = [publish(app, queue="other"), publish(app, seconds=60), publish(app, "add", args=(1, 2))]
        task_id = publish(app, args=("this",))
        options = ["--queue", "celery", "--task", "note", "--text", "this", "--due-before", "2040-01-01T00:00:30"]
        with nothing_changes(waiting.client):
            assert command(*verb, *options, "--dry-run").stdout == f"1 task would be {done}.\n"
            is_wrong_use(command(*verb, *options), question, "pass --yes")
        assert command(*verb, *options, "--yes").stdout == f"1 task {done}.\n"
        tasks = {task.id: task.due.year for task in app.delayq.iter_scheduled()}
        assert tasks.pop(task_id, None) == (2041 if name == "rescheduled" else None)
        assert tasks == dict.fromkeys(kept, 2040)
        assert len(ready(waiting.client)) == (name == "moved")
        (told,) = command(*verb, "--all", "--yes", "--json").json()
        assert told == {name: 3, "matched": 3, "dry_run": False}

    def test_are_none(self, command: Command, verb: list[str], question: str, done: str, name: str) -> None:
        """Of what is due then already, too."""
        answer = command(*verb, "--task", "nobody", "--yes")
        assert (answer.code, answer.stdout) == (1, f"0 tasks {done}.\n")

    def test_of_a_misspelt_name_are_an_error(
        self, command: Command, verb: list[str], question: str, done: str, name: str
    ) -> None:
        answer = command(*verb, "--task", "ntoe", "--yes")
        assert (answer.code, answer.stdout) == (1, "")
        assert answer.stderr == "Error: unknown task 'ntoe': did you mean 'note'?\n"

    @pytest.mark.parametrize("which", [[], ["--yes"], ["an-id", "--all"], ["--all", "--queue", "celery"]])
    def test_one_says_which(
        self, command: Command, verb: list[str], question: str, done: str, name: str, which: list[str]
    ) -> None:
        is_wrong_use(command(*verb, *which), "give either task ids, or filters", "or --all")


def test_tasks_of_other_programs_are_not_rescheduled(app: Celery, waiting: DelayedQueue, command: Command) -> None:
    waiting.register(again=True)
    publish(app)
    waiting.client.zadd(waiting.keys.timeout_set, {codec.pack(b"12345678", b"java"): FAR})
    done = command("reschedule", "--all", "--countdown", "1h", "--yes")
    assert (done.code, done.stdout) == (1, "1 task rescheduled.\n")
    assert done.stderr == "cannot reschedule 1 task of another program: cancel them, or run them now\n"


def test_show_needs_an_id(command: Command) -> None:
    is_wrong_use(command("show"), "Missing argument")

"""`celery -A app delayq dead`: what people do with messages that were set aside."""

from __future__ import annotations

import io
import json

import pytest
import redis
from celery import Celery
from kombu.utils.json import loads
from rich.console import Console

from celery_delayq import DeadLetters
from celery_delayq.cli import dead
from celery_delayq.queue import cursors, dead_letter
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.set_aside import keep
from celery_delayq.transport.redelivery import DELIVERY_COUNT
from tests.brokers import list_for
from tests.cli.running import Command, failed, is_wrong_use
from tests.state import bury

pytestmark = pytest.mark.on_cluster(always=True)

QUEUE = "celery"


@pytest.fixture
def urgent(broker_client: redis.Redis) -> str:
    """The list of a priority."""
    return list_for(broker_client, QUEUE, 3)


@pytest.fixture
def killer(app: Celery, broker_client: redis.Redis, command: Command, urgent: str) -> dict[str, str]:
    """A message that was set aside: its id and that of its task."""
    result = app.tasks["note"].apply_async(("x",), priority=3)
    message = loads(broker_client.rpop(urgent).decode())
    message["headers"][DELIVERY_COUNT] = 2
    return {"id": set_aside(broker_client, urgent, json.dumps(message).encode()), "task_id": result.id}


def set_aside(client: redis.Redis, name: str, message: bytes) -> str:
    """Let a message be a dead letter; return its id."""
    record = dead_letter.pack(message, reason=dead_letter.DELIVERY_LIMIT, deliveries=3)
    (letter_id,) = bury(client, name, record, at_ms=1_700_000_000_000)
    return letter_id


def test_list_shows_the_messages_of_all_priorities(
    command: Command, killer: dict[str, str], broker_client: redis.Redis, urgent: str
) -> None:
    garbage = set_aside(broker_client, QUEUE, b"\xff")
    common = {"reason": "delivery-limit", "error": None, "deliveries": 3, "at": "2023-11-14T22:13:20+00:00"}
    assert command("dead", "list", "--json").json() == [
        {"id": garbage, "queue": QUEUE, "list": QUEUE, "task": None, "task_id": None, **common},
        {"queue": QUEUE, "list": urgent, "task": "note", **killer, **common},
    ]


def fail(client: redis.Redis, name: str, task: str = "pay", error: str = "ValueError: no such order") -> str:
    """Keep a failed task; return its task id."""
    task_id = f"{task}-1"
    headers = {"id": task_id, "task": task, "argsrepr": "(42,)", "kwargsrepr": "{}"}
    message = json.dumps({"headers": headers, "properties": {}, "body": ""}).encode()
    known: dict[str, str | int] = {"error": error, "traceback": "Traceback ...", "worker": "celery@here", "runs": 4}
    record = dead_letter.pack(message, reason=dead_letter.FAILED, **known)
    keep(QueueKeys.of(name), record=record, most=100, kept_ms=60_000).run(client)
    return task_id


def test_failed_tasks_are_among_them(command: Command, killer: dict[str, str], broker_client: redis.Redis) -> None:
    task_id = fail(broker_client, list_for(broker_client, QUEUE))
    assert [row["reason"] for row in command("dead", "list", "--json").json()] == ["delivery-limit", "failed"]
    (row,) = command("dead", "list", "--reason", "failed", "--json").json()
    assert (row["task_id"], row["error"]) == (task_id, "ValueError: no such order")
    shown = command("dead", "show", QUEUE, row["id"]).stdout
    assert all(part in shown for part in ("ValueError: no such order", "Traceback ...", "celery@here"))


@pytest.mark.parametrize(
    "options",
    [("--task", "pay"), ("--text", "42"), ("--text", "such order"), ("--after", "-1h"), ("--reason", "failed")],
)
@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_options_select_some(
    command: Command, killer: dict[str, str], broker_client: redis.Redis, verb: str, options: tuple[str, ...]
) -> None:
    name = list_for(broker_client, QUEUE)
    fail(broker_client, name)
    arguments = ["--yes"] if verb == "purge" else []
    counts = {f"{verb}d": 0, "refused": 0, "matched": 1, "dry_run": True}
    assert command("dead", verb, QUEUE, *options, "--json", "--dry-run").json() == [counts]
    assert command("dead", verb, QUEUE, *options, "--dry-run").stdout == f"1 message would be {verb}d.\n"
    assert command("dead", verb, QUEUE, "--task", "nobody", "--dry-run").code == 1
    assert len(command("dead", "list", "--json").json()) == 2
    if verb == "purge":
        is_wrong_use(command("dead", verb, QUEUE, *options), "Delete 1 dead letter of 'celery' for good?")
    counts |= {f"{verb}d": 1, "dry_run": False}
    assert command("dead", verb, QUEUE, *options, "--json", *arguments).json() == [counts]
    assert broker_client.llen(name) == (verb == "requeue")
    assert [row["id"] for row in command("dead", "list", "--json").json()] == [killer["id"]]
    assert command("dead", verb, QUEUE, *options, *arguments).code == 1


def test_an_empty_list_says_so(command: Command) -> None:
    done = command("dead", "list")
    assert (done.code, done.stdout, done.stderr) == (0, "", "No dead letters.\n")
    assert command("dead", "list", "celery").stderr == "No dead letters in queue celery.\n"
    assert command("dead", "list", "--json").stdout == ""


def test_list_shows_a_table(command: Command, killer: dict[str, str]) -> None:
    output = command("dead", "list", QUEUE).stdout
    assert killer["id"] in output
    assert "delivery-limit" in output


@pytest.mark.parametrize("width", [80, 120])
def test_ids_are_whole_in_a_table(killer: dict[str, str], width: int) -> None:
    row = {
        "task": "a.module.of_some_length.task_of_some_length",
        "reason": "delivery-limit",
        "deliveries": 20,
        "error": None,
    }
    out = Console(width=width, file=io.StringIO())
    out.print(dead.table_of([{**row, **killer, "at": "2023-11-14T22:13:20+00:00"}], width))
    lines = out.file.getvalue().splitlines()
    assert any(killer["id"] in line and killer["task_id"] in line for line in lines), lines
    assert any("delivery-limit" in line for line in lines), lines


@pytest.mark.parametrize(
    ("width", "columns"),
    [(100, set()), (120, {"since"}), (160, {"since", "deliveries"})],
)
def test_no_name_and_no_word_is_cut_in_a_table(killer: dict[str, str], width: int, columns: set[str]) -> None:
    row = {
        "task": "shop.nightly_report",
        "reason": "delivery-limit",
        "deliveries": 20,
        "error": "RuntimeError: no bank",
    }
    table = dead.table_of([{**row, **killer, "at": "2023-11-14T22:13:20+00:00"}], width)
    out = Console(width=width, file=io.StringIO())
    out.print(table)
    words = set(out.file.getvalue().split())
    assert {*killer.values(), "delivery-limit", "RuntimeError:", "bank"} <= words, words
    assert {"shop.nightly_report", "nightly_report"} & words, words
    assert {"since", "deliveries"} & words == columns


def test_a_long_error_does_not_make_a_table_wide() -> None:
    row = {"id": "1", "task_id": "2", "task": "t", "reason": "failed", "deliveries": 1, "error": "x" * 500}
    table = dead.table_of([{**row, "at": "2023-11-14T22:13:20+00:00"}], 120)
    assert table.min_width is not None
    assert table.min_width <= 120


def test_show_has_the_message(command: Command, killer: dict[str, str], broker_client: redis.Redis) -> None:
    (shown,) = command("dead", "show", QUEUE, killer["id"], "--json", "--body").json()
    assert shown.keys() == {
        *("id", "queue", "list", "task", "task_id", "reason", "error", "deliveries", "at", "headers", "body", "size"),
    }
    assert command("dead", "show", QUEUE, killer["id"], "--json").json()[0].keys() == shown.keys() - {"body"}
    assert shown["headers"][DELIVERY_COUNT] == 2
    assert shown["body"][0] == ["x"]
    assert f"{DELIVERY_COUNT}: 2" in command("dead", "show", QUEUE, killer["id"]).stdout
    garbage = set_aside(broker_client, QUEUE, b"\xff\x00")
    (shown,) = command("dead", "show", QUEUE, garbage, "--json").json()
    assert (shown["message_base64"], shown["size"]) == ("/wA=", 2)
    failed(command("dead", "show", QUEUE, "nobody"), "no dead letter of 'celery' has the id nobody")


def test_an_invalid_task_is_shown_whatever_its_headers_are(command: Command, broker_client: redis.Redis) -> None:
    headers: dict[str, object]
    for number, headers in enumerate(({"task": {}, "id": []}, {"task": 5, "id": None, "eta": {}}, {})):
        message = json.dumps({"headers": headers, "properties": {}, "body": number}).encode()
        record = dead_letter.pack(message, reason=dead_letter.INVALID_TASK, error="its id must be a string")
        bury(broker_client, QUEUE, record)
        row = command("dead", "list", "--json").json()[number]
        assert (row["reason"], row["error"]) == ("invalid-task", "its id must be a string")
        assert (row["task"], row["task_id"]) == (headers.get("task"), headers.get("id"))
        assert "its id must be a string" in command("dead", "show", QUEUE, row["id"]).stdout
    assert "invalid-task" in command("dead", "list").stdout
    assert command("dead", "requeue", QUEUE, "--all", "--json").json()[0]["requeued"] == 3


def test_an_entry_that_was_none_is_listed_and_not_requeued(
    command: Command, killer: dict[str, str], broker_client: redis.Redis
) -> None:
    bury(broker_client, QUEUE, b"no entry")
    row = command("dead", "list", "--json").json()[0]
    assert row["reason"] == "not-an-entry"
    done = command("dead", "requeue", QUEUE, row["id"], "--json")
    assert done.code == 1
    assert f"cannot requeue {row['id']}: it is not a message" in done.stderr
    assert done.lines() == [{"id": row["id"], "done": False}]
    done = command("dead", "requeue", QUEUE, "--all", "--dry-run")
    assert (done.code, done.stdout) == (1, "1 message would be requeued.\n")
    done = command("dead", "requeue", QUEUE, "--all", "--json")
    assert done.code == 1
    assert "cannot requeue 1 dead letter: not a message" in done.stderr
    assert done.lines() == [{"requeued": 1, "refused": 1, "matched": 2, "dry_run": False}]
    assert not broker_client.llen(QUEUE)


def test_requeue_puts_a_message_back_and_counts_anew(
    command: Command, killer: dict[str, str], broker_client: redis.Redis, urgent: str
) -> None:
    assert command("dead", "requeue", QUEUE, killer["id"]).stdout == "1 message requeued.\n"
    assert command("dead", "list", "--json").json() == []
    message = loads(broker_client.rpop(urgent).decode())
    assert message["headers"]["id"] == killer["task_id"]
    assert DELIVERY_COUNT not in message["headers"]


def test_purge_deletes_only_what_was_named(
    command: Command, killer: dict[str, str], broker_client: redis.Redis
) -> None:
    other = set_aside(broker_client, QUEUE, b"other")
    assert command("dead", "purge", QUEUE, killer["id"]).stdout == "1 message purged.\n"
    assert [row["id"] for row in command("dead", "list", "--json").json()] == [other]
    assert command("dead", "purge", QUEUE, "--all", "--yes", "--json").json()[0]["purged"] == 1
    assert not len(DeadLetters(broker_client, QUEUE))


def test_to_purge_all_wants_yes(command: Command, killer: dict[str, str]) -> None:
    done = command("dead", "purge", QUEUE, "--all")
    is_wrong_use(done, "Delete 1 dead letter of 'celery' for good?", "pass --yes")
    assert len(command("dead", "list", "--json").json()) == 1


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_a_wrong_id_changes_nothing(command: Command, killer: dict[str, str], verb: str) -> None:
    failed(command("dead", verb, QUEUE, killer["id"], "nobody"), "no dead letter of 'celery' has the id nobody")
    assert len(command("dead", "list", "--json").json()) == 1


@pytest.mark.parametrize("arguments", [[], ["--all", "0123"]])
@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_one_says_which(command: Command, killer: dict[str, str], verb: str, arguments: list[str]) -> None:
    is_wrong_use(command("dead", verb, QUEUE, *arguments), "give either ids from `dead list`, or options")
    assert len(command("dead", "list", "--json").json()) == 1


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_where_there_is_none_nothing_is_done(command: Command, verb: str) -> None:
    done = command("dead", verb, QUEUE, "--all")
    assert (done.code, done.stdout) == (1, f"0 messages {verb.rstrip('e')}ed.\n")


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_a_dry_run_is_for_many(command: Command, killer: dict[str, str], verb: str) -> None:
    is_wrong_use(command("dead", verb, QUEUE, killer["id"], "--dry-run"), "--dry-run works only with filters or --all")


def test_list_shows_all_queues(
    app: Celery, command: Command, killer: dict[str, str], broker_client: redis.Redis
) -> None:
    app.tasks["note"].apply_async(queue="other", countdown=60)  # so that its name is known
    other = set_aside(broker_client, "other", b"message")
    rows = command("dead", "list", "--json").json()
    assert {row["queue"]: row["id"] for row in rows} == {"celery": killer["id"], "other": other}
    tables = command("dead", "list").stdout
    for row in rows:
        assert tables.index(f"queue {row['queue']}") < tables.index(row["id"])
    assert "2023-11-14 22:13" in tables
    assert "queue other" not in command("dead", "list", "other").stdout


def test_a_queue_that_only_dead_messages_know(command: Command, broker_client: redis.Redis) -> None:
    """Its tasks were never delayed, and the app does not declare it."""
    letter = set_aside(broker_client, "elsewhere", b"message")
    assert [row["id"] for row in command("dead", "list", "elsewhere", "--json").json()] == [letter]


class TestMany:
    """More dead letters than one page or one chunk has, in two lists."""

    @pytest.fixture
    def ids(self, command: Command, broker_client: redis.Redis, urgent: str) -> list[str]:
        """The ids of 1,600 dead letters, in the order of their list."""
        found = []
        for name in (QUEUE, urgent):
            messages = [b'{"headers": {}, "properties": {}, "body": "%d"}' % number for number in range(800)]
            records = [dead_letter.pack(message, reason=dead_letter.DELIVERY_LIMIT) for message in messages]
            found += bury(broker_client, name, *records, at_ms=1 + len(found))
        return found

    def test_list_shows_a_hundred_and_the_cursor_goes_on(self, command: Command, ids: list[str]) -> None:
        *first, more = command("dead", "list", "--json").json()
        assert more.keys() == {"cursor"}
        *second, last = command("dead", "list", "--json", "--limit", 1200, "--cursor", more["cursor"]).json()
        rest = command("dead", "list", "--json", "--limit", 300, "--cursor", last["cursor"]).json()
        assert [len(first), len(second), len(rest)] == [100, 1200, 300]
        assert [row["id"] for row in (*first, *second, *rest)] == ids

    def test_list_shows_all(self, command: Command, ids: list[str]) -> None:
        assert [row["id"] for row in command("dead", "list", "--all", "--json").json()] == ids
        done = command("dead", "list", "--all")
        assert done.stderr == ""
        assert all(letter_id in done.stdout for letter_id in ids)

    def test_a_table_says_how_to_go_on(self, command: Command, ids: list[str]) -> None:
        assert "There may be more dead letters: continue with --cursor " in command("dead", "list").stderr
        assert command("dead", "list", "--limit", 1600).stderr == ""

    @pytest.mark.parametrize("at", [0, 799, 800, 1599])
    def test_a_letter_is_changed_wherever_it_is(self, command: Command, ids: list[str], at: int) -> None:
        assert command("dead", "show", QUEUE, ids[at], "--json").json()[0]["id"] == ids[at]
        assert command("dead", "requeue", QUEUE, ids[at]).stdout == "1 message requeued.\n"
        left = [row["id"] for row in command("dead", "list", "--all", "--json").json()]
        assert left == [*ids[:at], *ids[at + 1 :]]

    def test_all_are_requeued(self, command: Command, ids: list[str], broker_client: redis.Redis, urgent: str) -> None:
        assert command("dead", "requeue", QUEUE, "--all").stdout == "1,600 messages requeued.\n"
        assert (broker_client.llen(QUEUE), broker_client.llen(urgent)) == (800, 800)
        assert command("dead", "list", "--json").json() == []

    def test_all_are_purged(self, command: Command, ids: list[str]) -> None:
        is_wrong_use(command("dead", "purge", QUEUE, "--all"), "Delete 1,600 dead letters of 'celery' for good?")
        assert command("dead", "purge", QUEUE, "--all", "--yes").stdout == "1,600 messages purged.\n"
        assert command("dead", "list", "--json").json() == []


def test_wrong_numbers_and_cursors(command: Command, killer: dict[str, str]) -> None:
    is_wrong_use(command("dead", "list", "--limit", 0), "--limit")
    for cursor in ("nonsense", cursors.encode(["celery", "nonsense"]), cursors.encode([5, None])):
        is_wrong_use(command("dead", "list", "--cursor", cursor), f"must be the cursor of a page, not '{cursor}'")


def test_an_unknown_queue_is_an_error(command: Command) -> None:
    failed(command("dead", "list", "celry"), "did you mean 'celery'?")
    failed(command("dead", "purge", "celry", "--all", "--yes"), "did you mean 'celery'?")
    failed(command("dead", "requeue", "celry", "0123"), "did you mean 'celery'?")


@pytest.mark.parametrize("call", [["list"], ["requeue", QUEUE], ["purge", QUEUE, "--yes"]])
def test_a_misspelt_task_is_an_error(command: Command, killer: dict[str, str], call: list[str]) -> None:
    failed(command("dead", *call, "--task", "ntoe"), "unknown task 'ntoe': did you mean 'note'?")

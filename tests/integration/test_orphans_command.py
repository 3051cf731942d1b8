"""`celery -A app delayq orphans`: who gets what Java applications left behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from click.testing import Result

from celery_delayq import DelayedQueue
from celery_delayq.queue import codec
from celery_delayq.queue.connections import at_server_of
from celery_delayq.queue.registry import registered
from tests.integration.commands import delayq, rows
from tests.ledger import ALL_WELL, Ledger
from tests.state import FAR, nothing_changes, now_ms, seed
from tests.support import wait_until
from tests.worker_app import make_app
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

Command = Callable[..., Result]


@pytest.fixture
def command(broker_url: str, ledger_url: str, broker_client: redis.Redis) -> Command:
    """Run `celery delayq orphans ...` in this process, on an empty broker."""
    broker_client.flushall()

    def run(*args: str, **conf: Any) -> Result:
        app = make_app(broker_url, ledger_url, **conf)
        return delayq(app, "orphans", *args)

    return run


def leave(client: redis.Redis, name: str, *payloads: bytes, due_ms: int = FAR) -> DelayedQueue:
    """Leave entries behind as Java does, a ms apart."""
    queue = DelayedQueue(client, name)
    entries = {codec.pack(b"%08d" % at, payload): due_ms + at for at, payload in enumerate(payloads)}
    seed(queue, entries)
    client.rpush(queue.keys.delay_list, *entries)
    return queue


def tasks(queue: DelayedQueue) -> list[tuple[str, Any, int]]:
    """The Celery tasks that wait: name, arguments, due."""
    found = []
    for entry in queue.peek(100):
        message = json.loads(entry.payload)
        args = json.loads(base64.b64decode(message["body"]))[0]
        found.append((message["headers"]["task"], args, entry.score))
    return found


def test_list_shows_what_is_there(command: Command, broker_client: redis.Redis) -> None:
    leave(broker_client, "jobs", b"1", b"2")
    DelayedQueue(broker_client, "ours").offer(b"x", countdown=60)
    expected = {"first_due": "2096-10-02T07:06:40.000+00:00", "last_due": "2096-10-02T07:06:40.001+00:00"}
    assert rows(command("list", "--json")) == [{"list": "jobs", "waiting": 2, **expected, "listeners": 0}]
    assert "first due (UTC)" in command("list").output
    assert "2096-10-02 07:06:40 " in command("list").output


def test_list_shows_a_due_time_beyond_all_calendars(command: Command, broker_client: redis.Redis) -> None:
    leave(broker_client, "jobs", b"1", due_ms=2**52)
    assert rows(command("list", "--json"))[0]["first_due"] == "4503599627370496 ms"
    assert "4503599627370496 ms" in command("list").output


def test_entries_shows_each_with_its_due_time(command: Command, broker_client: redis.Redis) -> None:
    seed(leave(broker_client, "jobs", b"[bold]", b"\xff"), {b"garbage": FAR + 2})
    first = {"due": "2096-10-02T07:06:40.000+00:00", "payload": "[bold]", "problem": None}
    second = {"due": "2096-10-02T07:06:40.001+00:00", "payload": r"b'\xff'", "problem": "not text"}
    third = {"due": None, "payload": None, "problem": "not a valid entry"}
    assert rows(command("entries", "jobs", "--json")) == [first, second, third]
    assert rows(command("entries", "jobs", "--json", "--limit", "1")) == [first]
    assert "[bold]" in command("entries", "jobs").output


@pytest.mark.parametrize("options", [(), ("--task", "note")])
def test_without_being_told_nothing_is_changed(
    command: Command, broker_client: redis.Redis, options: tuple[str, ...]
) -> None:
    leave(broker_client, "jobs", b"1", b"\xff")
    with nothing_changes(broker_client):
        result = command("adopt", "jobs", *options)
    assert result.exit_code == 0
    assert "would" in result.output
    assert "nothing was changed" in result.output


def test_an_adopted_queue_reaches_its_list_on_time(
    command: Command, broker_client: redis.Redis, broker_url: str, ledger: Ledger
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url):
        queue = leave(broker_client, "jobs", b"1", b"2", due_ms=now_ms(broker_client) + 1000)
        (row,) = rows(command("adopt", "--all", "--no-dry-run", "--json"))
        assert (row["list"], row["taken"], row["left"]) == ("jobs", 2, 0)
        assert queue.client.brpop(["jobs"], timeout=10) == (b"jobs", b"1")
        assert queue.client.brpop(["jobs"], timeout=10) == (b"jobs", b"2")
    assert command("list", "--json").output == ""


def test_entries_become_tasks_that_run_when_they_are_due(
    command: Command, broker_client: redis.Redis, broker_url: str, ledger: Ledger
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url):
        due_ms = now_ms(broker_client) + 1500
        leave(broker_client, "jobs", b"due")
        leave(broker_client, "other", b"soon", due_ms=due_ms)
        leave(broker_client, "overdue", b"overdue", due_ms=1)
        assert command("adopt", "other", "overdue", "--task", "note", "--no-dry-run").exit_code == 0
        wait_until(lambda: len(ledger.runs()) == 2, "both tasks ran")
    assert [run.note for run in ledger.runs()] == ["overdue", "soon"]
    assert ledger.verdict({ledger.runs()[1].task_id: due_ms}) == ALL_WELL
    assert [row["list"] for row in rows(command("list", "--json"))] == ["jobs"]


@pytest.mark.parametrize(
    ("name", "payload", "argument"),
    [("text", "grün".encode(), "grün"), ("json", b'{"a": [1]}', {"a": [1]}), ("base64", b"\xff\x00", "/wA=")],
)
def test_a_codec_makes_the_argument(
    command: Command, broker_client: redis.Redis, name: str, payload: bytes, argument: object
) -> None:
    leave(broker_client, "jobs", payload)
    command("adopt", "jobs", "--task", "note", "--codec", name, "--queue", "q", "--no-dry-run")
    assert tasks(DelayedQueue(broker_client, "q")) == [("note", [argument], FAR)]


def test_what_the_codec_cannot_read_stays(command: Command, broker_client: redis.Redis) -> None:
    queue = leave(broker_client, "jobs", b'"good"', b"bad", b'"good"', b"\xff")
    seed(queue, {b"garbage": FAR + 10})
    dry, done = (
        rows(command("adopt", "jobs", "--task", "note", "--codec", "json", "--json", option))[0]
        for option in ("--dry-run", "--no-dry-run")
    )
    assert (dry["taken"], dry["left"]) == (done["taken"], done["left"]) == (2, 3)
    assert [entry.payload for entry in queue.peek(10)] == [b"bad", b"\xff"]
    assert queue.size() == 3
    assert len(tasks(DelayedQueue(broker_client, "celery"))) == 2


def test_routes_and_the_delay_list_are_those_of_the_app(command: Command, broker_client: redis.Redis) -> None:
    leave(broker_client, "jobs", b"x")
    conf = {"task_routes": {"note": "routed"}, "broker_transport_options": {"mirror_list": True}}
    assert command("adopt", "jobs", "--task", "note", "--no-dry-run", **conf).exit_code == 0
    routed = DelayedQueue(broker_client, "routed")
    assert routed.size() == broker_client.llen(routed.keys.delay_list) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "or --all"),
        (("jobs", "--all"), "or --all"),
        (("jobs", "--codec", "json"), "need --task"),
        (("jobs", "--task", "nots"), "did you mean 'note'?"),
        (("nothing",), "has no waiting entries"),
        (("ours",), "not an orphan"),
    ],
)
def test_mistakes_change_nothing(
    command: Command, broker_client: redis.Redis, args: tuple[str, ...], message: str
) -> None:
    leave(broker_client, "jobs", b"x")
    DelayedQueue(broker_client, "ours").offer(b"x", countdown=60)
    with nothing_changes(broker_client):
        result = command("adopt", *args, "--no-dry-run")
    assert result.exit_code != 0
    assert message in result.output


def test_tasks_cannot_go_where_the_entries_come_from(command: Command, broker_client: redis.Redis) -> None:
    """They would be taken again, without end."""
    queue = leave(broker_client, "jobs", b"x")
    result = command("adopt", "jobs", "--task", "note", "--queue", "jobs", "--no-dry-run")
    assert "choose another with --queue" in result.output
    assert [entry.payload for entry in queue.peek(10)] == [b"x"]
    assert "jobs" not in registered(broker_client), "workers would transfer it"


def test_a_queue_that_an_application_serves_is_taken_by_force_only(
    command: Command, broker_client: redis.Redis
) -> None:
    queue = leave(broker_client, "jobs", b"x")
    with at_server_of(broker_client, "jobs").pubsub() as pubsub:
        pubsub.subscribe(queue.keys.channel)
        pubsub.get_message(timeout=5)
        assert "a running application transfers it" in command("adopt", "--all", "--no-dry-run").output
        assert queue.size() == 1
        assert command("adopt", "--all", "--task", "note", "--no-dry-run", "--force").exit_code == 0
    assert queue.size() == 0

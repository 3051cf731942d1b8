"""`celery -A app delayq dead`: what people do with messages that were set aside."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis
from celery import Celery
from click.testing import Result
from kombu.utils.json import loads

from celery_delayq import DeadLetters, dead_letters
from celery_delayq.transport.redelivery import DELIVERY_COUNT
from tests.integration.commands import delayq, rows
from tests.worker_app import make_app

QUEUE = "celery"
URGENT = "celery\x06\x163"

Command = Callable[..., Result]


@pytest.fixture
def command(broker_url: str, ledger_url: str, broker_client: redis.Redis) -> Command:
    """Run `celery delayq dead ...` in this process, on an empty broker."""
    broker_client.flushall()
    app = make_app(broker_url, ledger_url)

    def run(*args: str) -> Result:
        return delayq(app, "dead", *args)

    return run


@pytest.fixture
def killer(app: Celery, broker_client: redis.Redis, command: Command) -> dict[str, str]:
    """A message that was set aside: its id and that of its task."""
    result = app.tasks["note"].apply_async(("x",), priority=3)
    message = loads(broker_client.rpop(URGENT).decode())
    message["headers"][DELIVERY_COUNT] = 2
    return {"id": set_aside(broker_client, URGENT, json.dumps(message).encode()), "task_id": result.id}


def set_aside(client: redis.Redis, name: str, message: bytes) -> str:
    """Put a message in a dead list; return its id there."""
    letters = DeadLetters(client, name)
    raw = dead_letters.pack(message, reason=dead_letters.DELIVERY_LIMIT, at_ms=1_700_000_000_000, deliveries=3)
    client.rpush(letters.keys.dead, raw)
    return dead_letters.unpack(raw).id


def test_list_shows_the_messages_of_all_priorities(
    command: Command, killer: dict[str, str], broker_client: redis.Redis
) -> None:
    garbage = set_aside(broker_client, QUEUE, b"\xff")
    common = {"reason": "delivery-limit", "deliveries": 3, "at": "2023-11-14T22:13:20+00:00"}
    assert rows(command("list", "--json")) == [
        {"id": garbage, "list": QUEUE, "task": None, "task_id": None, **common},
        {"list": URGENT, "task": "note", **killer, **common},
    ]


def test_list_shows_a_table(command: Command, killer: dict[str, str]) -> None:
    output = command("list", QUEUE).output
    assert killer["id"] in output
    assert "delivery-limit" in output


def test_an_entry_that_was_none_is_listed_and_not_requeued(command: Command, broker_client: redis.Redis) -> None:
    broker_client.rpush(DeadLetters(broker_client, QUEUE).keys.dead, b"no entry")
    (row,) = rows(command("list", "--json"))
    assert row["reason"] == "not-an-entry"
    result = command("requeue", QUEUE, "--all")
    assert f"{row['id']} is no message" in result.output
    assert result.output.endswith("0 messages requeued.\n")
    assert not broker_client.llen(QUEUE)


def test_requeue_puts_a_message_back_and_counts_anew(
    command: Command, killer: dict[str, str], broker_client: redis.Redis
) -> None:
    assert command("requeue", QUEUE, killer["id"]).output == "1 messages requeued.\n"
    assert rows(command("list", "--json")) == []
    message = loads(broker_client.rpop(URGENT).decode())
    assert message["headers"]["id"] == killer["task_id"]
    assert DELIVERY_COUNT not in message["headers"]


def test_purge_deletes_only_what_was_named(
    command: Command, killer: dict[str, str], broker_client: redis.Redis
) -> None:
    other = set_aside(broker_client, QUEUE, b"other")
    assert command("purge", QUEUE, killer["id"]).output == "1 purged.\n"
    assert [row["id"] for row in rows(command("list", "--json"))] == [other]
    assert command("purge", QUEUE, "--all").output == "1 purged.\n"
    assert not broker_client.exists(DeadLetters(broker_client, QUEUE).keys.dead)


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_a_wrong_id_changes_nothing(command: Command, killer: dict[str, str], verb: str) -> None:
    result = command(verb, QUEUE, killer["id"], "nobody")
    assert result.exit_code == 1
    assert "no dead message of 'celery' has the id nobody" in result.output
    assert len(rows(command("list", "--json"))) == 1


@pytest.mark.parametrize("arguments", [[], ["--all", "0123"]])
@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_one_says_which(command: Command, killer: dict[str, str], verb: str, arguments: list[str]) -> None:
    result = command(verb, QUEUE, *arguments)
    assert result.exit_code == 2
    assert "by the ids that `dead list` shows, or say --all" in result.output
    assert len(rows(command("list", "--json"))) == 1


def test_another_transport_is_refused(ledger_url: str) -> None:
    app = make_app("memory://", ledger_url)
    result = delayq(app, "dead", "list")
    assert result.exit_code == 1
    assert "begin the URL with delayq://" in result.output

"""`DelayQ.dead`, `requeue_dead` and `purge_dead`: dead letters and failed tasks without a Redis client."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.utils.json import loads

from celery_delayq import DelayQ, UnknownQueue, UnknownTask
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, FAILED, NOT_AN_ENTRY, pack
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.set_aside import keep
from tests.brokers import list_for
from tests.state import bury
from tests.worker_app import make_app

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("empty_broker")]


@pytest.fixture
def name(broker_client: redis.Redis) -> str:
    """The broker list of a queue."""
    return list_for(broker_client, "celery")


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    delayq: DelayQ = app.delayq
    return delayq


def message(task_id: str, **headers: Any) -> bytes:
    fields = {"id": task_id, "task": "pay", "argsrepr": "(42,)", "kwargsrepr": "{}", **headers}
    return json.dumps({"headers": fields, "properties": {}, "body": ""}).encode()


def fail(client: redis.Redis, name: str, task_id: str, error: str = "ValueError: no", **headers: Any) -> None:
    """Keep a failed task."""
    record = pack(message(task_id, **headers), reason=FAILED, error=error, runs=1)
    keep(QueueKeys.of(name), record=record, most=100, kept_ms=60_000).run(client)


def ids(client: redis.Redis, name: str) -> list[str]:
    return [loads(raw.decode())["headers"]["id"] for raw in reversed(client.lrange(name, 0, -1))]


def test_pages_have_both_and_filters_select_some(delayq: DelayQ, broker_client: redis.Redis, name: str) -> None:
    bury(broker_client, name, pack(message("a"), reason=DELIVERY_LIMIT, deliveries=20), at_ms=1_700_000_000_000)
    fail(broker_client, name, "b")
    fail(broker_client, list_for(broker_client, "other"), "c", task="mail", argsrepr="('x@y',)", error="OSError: away")
    delayq.app.send_task("note", queue="other")  # so that its name is known
    assert [loads(letter.message)["headers"]["id"] for letter in delayq.dead()] == ["a", "b", "c"]

    def found(**filters: Any) -> list[str]:
        return [loads(letter.message)["headers"]["id"] for letter in delayq.dead(**filters)]

    assert found(queue="celery") == ["a", "b"]
    assert found(reason=FAILED) == ["b", "c"]
    assert found(task="mail") == found(task=delayq.app.signature("mail")) == ["c"]
    assert found(task=delayq.app.tasks["note"]) == []
    with pytest.raises(UnknownTask, match="did you mean 'note'"):
        delayq.dead(task="ntoe")
    assert found(text="away") == ["c"]
    assert found(text="42") == ["a", "b"]
    assert found(before=datetime(2024, 1, 1, tzinfo=timezone.utc)) == ["a"]
    assert found(after=time.time() - 3600) == ["b", "c"]
    page = delayq.dead(limit=2)
    assert len(page) == 2
    assert len(delayq.dead(limit=2, cursor=page.cursor)) == 1


def test_some_of_a_page_or_all_that_match_run_again(delayq: DelayQ, broker_client: redis.Redis, name: str) -> None:
    for task_id in ("a", "b", "c"):
        fail(broker_client, name, task_id)
    first, second, third = delayq.dead("celery")
    assert delayq.requeue_dead(first) == 1
    assert delayq.requeue_dead([first, second]) == 1
    assert delayq.requeue_dead([]) == 0
    assert {*ids(broker_client, name), loads(third.message)["headers"]["id"]} == {"a", "b", "c"}
    assert delayq.requeue_dead(task="mail") == 0
    assert delayq.requeue_dead(task="pay", reason=FAILED) == 1
    assert delayq.dead().letters == ()


def test_a_dry_run_counts_what_matches_and_changes_nothing(
    delayq: DelayQ, broker_client: redis.Redis, name: str
) -> None:
    fail(broker_client, name, "a")
    fail(broker_client, name, "b")
    bury(broker_client, name, pack(b"garbage", reason=NOT_AN_ENTRY))
    before = delayq.dead().letters
    assert delayq.requeue_dead(task="pay", dry_run=True) == 2
    assert delayq.requeue_dead(everything=True, dry_run=True) == 2
    assert delayq.purge_dead(queue="celery", dry_run=True) == 3
    assert delayq.purge_dead(text="b", dry_run=True) == 1
    assert delayq.dead().letters == before
    with pytest.raises(TypeError, match="give no letters"):
        delayq.purge_dead(before, dry_run=True)
    with pytest.raises(ValueError, match="everything=True"):
        delayq.purge_dead(dry_run=True)


def test_a_letter_says_which_task_it_is_of(delayq: DelayQ, broker_client: redis.Redis, name: str) -> None:
    fail(broker_client, name, "a")
    letter = delayq.dead()[0]
    assert (letter.task, letter.task_id, letter.headers["argsrepr"]) == ("pay", "a", "(42,)")
    assert "pay[a]" in repr(letter)
    assert delayq.dead(text="a").letters == (letter,)
    bury(broker_client, name, pack(b"garbage", reason=NOT_AN_ENTRY))
    assert delayq.dead(reason=NOT_AN_ENTRY)[0].task is None


@pytest.mark.parametrize("wrong", ["a", ["a"], [None]])
def test_what_is_no_letter_is_refused(delayq: DelayQ, wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be one of a page"):
        delayq.requeue_dead(wrong)


def test_a_damaged_record_is_deleted_from_where_it_is(delayq: DelayQ, broker_client: redis.Redis, name: str) -> None:
    fail(broker_client, name, "a")
    keys = QueueKeys.of(name)
    (letter_id,) = broker_client.hkeys(keys.failed_records)
    broker_client.hset(keys.failed_records, letter_id, b"garbage")
    (letter,) = delayq.dead()
    assert (letter.reason, letter.is_failure) == (NOT_AN_ENTRY, True)
    assert delayq.requeue_dead(letter) == 0
    assert delayq.purge_dead(letter) == 1
    assert not broker_client.exists(keys.failed)


def test_all_are_changed_only_if_that_is_said(delayq: DelayQ, broker_client: redis.Redis, name: str) -> None:
    fail(broker_client, name, "a")
    (letter,) = delayq.dead()
    with pytest.raises(ValueError, match="everything=True"):
        delayq.purge_dead()
    with pytest.raises(TypeError, match=r"^requeue_dead\(\) got an unexpected keyword argument 'tsk'"):
        delayq.requeue_dead(tsk="pay")
    with pytest.raises(TypeError, match="either letters or criteria"):
        delayq.purge_dead(letter, queue="celery")
    assert delayq.purge_dead(everything=True) == 1


@pytest.mark.parametrize("wrong", [{"reason": "tired"}, {"text": ""}, {"limit": 0}, {"cursor": "x"}])
def test_wrong_values_are_named(delayq: DelayQ, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        delayq.dead(**wrong)


def test_an_unknown_queue_is_an_error(delayq: DelayQ) -> None:
    with pytest.raises(UnknownQueue, match="celary"):
        delayq.dead("celary")


def test_in_tests_nothing_is_dead(ledger_url: str) -> None:
    with make_app("memory://", ledger_url) as app:
        assert app.delayq.dead("celery").letters == ()
        assert app.delayq.requeue_dead(everything=True) == 0

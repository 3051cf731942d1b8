"""The ground of the browser tests: what fills a broker is what it says, and can be read."""

from __future__ import annotations

from collections import Counter

import pytest
import redis
from celery import Celery

from celery_delayq import DeadLetters
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.cli.running import run
from tests.support import wait_until
from tests.web.filling import add_orders, fill, shop
from tests.web.hostile import TEXTS, fill_hostile
from tests.web.shop import BEAT_SCHEDULE, QUEUES
from tests.workers import Worker


def test_an_ordinary_day(app: Celery, client: redis.Redis) -> None:
    filled = fill(app, client)
    waiting = {task.id for task in app.delayq.iter_scheduled()}
    assert waiting == {*filled.waiting.values(), filled.overdue}
    of = {counts.queue: counts for counts in app.delayq.counts().queues}
    assert (of["celery"].overdue, of["celery"].in_flight, of["celery"].dead, of["mail"].ready) == (1, 1, 4, 1)
    assert set(of) == set(QUEUES)
    letters = list(DeadLetters(client, "celery"))
    assert {letter.reason: letter.id for letter in letters} == filled.dead
    assert len(filled.dead) == 5
    assert sorted(entry.name for entry in app.delayq.schedule) == filled.periodic
    retried = app.delayq.get(filled.waiting["a retry"])
    assert retried.retries == 2


def test_a_broker_can_be_filled_again(broker: PrivateRedis, client: redis.Redis, ledger_url: str) -> None:
    for _ in range(2):
        with shop(broker, ledger_url) as app:
            filled = fill(app, client)
            assert len(list(app.delayq.iter_scheduled())) == len(filled.waiting) + 1


def test_a_worker_of_the_shop_moves_what_is_due_and_plans(
    app: Celery, client: redis.Redis, broker: PrivateRedis, ledger_url: str
) -> None:
    filled = fill(app, client)
    with Worker("-Q", ",".join(QUEUES), app="tests.web.shop", broker=brokers.url_of(broker), ledger=ledger_url):
        wait_until(lambda: app.delayq.get(filled.overdue) is None, "the overdue task is moved")
        wait_until(
            lambda: {entry.name for entry in app.delayq.schedule if entry.next_run} >= {*BEAT_SCHEDULE, "newsletter"},
            "the periodic tasks are planned",
        )


def test_many_orders(app: Celery) -> None:
    ids = add_orders(app, 250)
    assert [task.id for task in app.delayq.iter_scheduled()] == ids


def test_the_hostile_corpus_is_there(app: Celery, client: redis.Redis) -> None:
    filled = fill_hostile(app, client)
    tasks = list(app.delayq.iter_scheduled())
    found = Counter(task.queue for task in tasks)
    assert found["celery"] >= len(filled.waiting)
    assert set(filled.queues) <= set(found)
    for what, text in TEXTS.items():
        task = app.delayq.get(filled.waiting[what])
        assert task is not None
        assert (task.name, task.args_text) == (text, f"({text})"), what
    assert [letter.id for letter in DeadLetters(client, "celery")] == filled.dead


@pytest.mark.parametrize("command", [["list", "--limit", "1000"], ["status"], ["dead", "list"], ["schedule", "list"]])
def test_commands_read_the_hostile_corpus(app: Celery, client: redis.Redis, command: list[str]) -> None:
    fill_hostile(app, client, large=False)
    assert run(app, *command).code == 0

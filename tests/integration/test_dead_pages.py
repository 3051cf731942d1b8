"""`Inspector`: dead letters of a queue in pages and chunks, over the lists of all priorities."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from celery_delayq import DeadLetters, DelayedQueue
from celery_delayq.cli.broker import inspecting
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, pack
from celery_delayq.transport.redelivery import DELIVERY_COUNT, revived
from tests.brokers import list_for
from tests.state import bury

pytestmark = pytest.mark.on_cluster

QUEUE = "celery"


@pytest.fixture
def letters(app: Celery, waiting: DelayedQueue) -> Iterator[DeadLetters]:
    """The dead letters of a queue of an empty broker."""
    with inspecting(app) as inspector:
        yield inspector.dead_letters(QUEUE)


@pytest.fixture
def names(broker_client: redis.Redis) -> list[str]:
    """The lists of three priorities, sorted by name."""
    return sorted(list_for(broker_client, QUEUE, priority) for priority in (0, 3, 9))


def message(name: str) -> bytes:
    return json.dumps({"headers": {"id": name, DELIVERY_COUNT: 20}, "properties": {}, "body": ""}).encode()


def fill(client: redis.Redis, name: str, count: int) -> list[str]:
    """Let messages of a list be dead letters. Return their ids."""
    messages = [message(f"{name} {number}") for number in range(count)]
    return bury(client, name, *(pack(one, reason=DELIVERY_LIMIT, deliveries=20) for one in messages))


@pytest.mark.parametrize("limit", [1, 3, 7, 10, 20, 1000])
def test_pages_go_through_all_lists(
    letters: DeadLetters, broker_client: redis.Redis, names: list[str], limit: int
) -> None:
    expected = [(name, letter_id) for name in names for letter_id in fill(broker_client, name, 10)]
    seen, cursor = [], None
    while not seen or cursor:
        page = letters.page(cursor, limit)
        assert len(letters) == 30
        assert 0 < len(page) <= limit
        seen += [(letter.list_name, letter.id) for letter in page]
        cursor = page.cursor
    assert seen == expected


def test_an_empty_queue_has_an_empty_page(letters: DeadLetters) -> None:
    page = letters.page()
    assert (page.letters, page.cursor, len(letters)) == ((), None, 0)
    assert letters.requeue_some(revive=revived).cursor is None


def test_a_list_that_is_gone_between_two_pages_hides_no_other(
    letters: DeadLetters, broker_client: redis.Redis, names: list[str]
) -> None:
    ids = [fill(broker_client, name, 10) for name in names]
    cursor = letters.page(None, 15).cursor
    DeadLetters(broker_client, names[1]).purge()
    page = letters.page(cursor, 100)
    assert [letter.id for letter in page] == ids[2]
    assert len(letters) == 20


def test_a_letter_is_found_in_any_list(letters: DeadLetters, broker_client: redis.Redis, names: list[str]) -> None:
    for number, name in enumerate(names):
        ids = bury(broker_client, name, *(b"%d" % n for n in range(30)), at_ms=1000 * (number + 1))
        found = letters.find_many(["0" * 16, ids[25], ids[5], "nobody"])
        assert {one: (letter.list_name, letter.message) for one, letter in found.items()} == {
            ids[25]: (name, b"25"),
            ids[5]: (name, b"5"),
        }


def test_chunks_requeue_all_lists_with_new_counts(
    letters: DeadLetters, broker_client: redis.Redis, names: list[str]
) -> None:
    for name in names:
        fill(broker_client, name, 10)
        bury(broker_client, name, b"garbage")
    chunks, cursor = [], None
    while not chunks or cursor:
        chunks.append(letters.requeue_some(12, cursor, revive=revived))
        cursor = chunks[-1].cursor
    assert [chunk.changed + chunk.refused for chunk in chunks] == [12, 12, 9]
    assert sum(chunk.refused for chunk in chunks) == 3
    for name in names:
        requeued = [json.loads(raw) for raw in broker_client.lrange(name, 0, -1)][::-1]
        assert [found["headers"] for found in requeued] == [{"id": f"{name} {number}"} for number in range(10)]
    assert len(letters) == 3


def test_chunks_purge_all_lists(letters: DeadLetters, broker_client: redis.Redis, names: list[str]) -> None:
    for name in names:
        fill(broker_client, name, 10)
    first = letters.purge_some(25)
    assert (first.changed, first.refused) == (25, 0)
    second = letters.purge_some(25, first.cursor)
    assert (second.changed, second.cursor) == (5, None)
    assert len(letters) == 0

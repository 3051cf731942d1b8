"""`Inspector`: dead letters of a queue in pages and chunks, over the lists of all priorities."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from celery_delayq import DeadLetters, DelayedQueue
from celery_delayq.cli.broker import inspecting
from celery_delayq.inspector import Inspector
from celery_delayq.queue import cursors
from celery_delayq.queue.dead_letters import DELIVERY_LIMIT, pack
from celery_delayq.transport.redelivery import DELIVERY_COUNT
from tests.brokers import list_for
from tests.state import bury

pytestmark = pytest.mark.on_cluster

QUEUE = "celery"


@pytest.fixture
def inspector(app: Celery, waiting: DelayedQueue) -> Iterator[Inspector]:
    """An inspector of an empty broker."""
    with inspecting(app) as inspector:
        yield inspector


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
    inspector: Inspector, broker_client: redis.Redis, names: list[str], limit: int
) -> None:
    expected = [(name, letter_id) for name in names for letter_id in fill(broker_client, name, 10)]
    seen, cursor = [], None
    while not seen or cursor:
        page = inspector.dead_page(QUEUE, limit, cursor)
        assert page.total == 30
        assert 0 < len(page) <= limit
        seen += [(letters.name, letter.id) for letters, letter in page]
        cursor = page.cursor
    assert seen == expected


def test_an_empty_queue_has_an_empty_page(inspector: Inspector) -> None:
    page = inspector.dead_page(QUEUE)
    assert (page.letters, page.cursor, page.total) == ((), None, 0)
    assert inspector.requeue_dead_some(QUEUE).cursor is None


def test_a_list_that_is_gone_between_two_pages_hides_no_other(
    inspector: Inspector, broker_client: redis.Redis, names: list[str]
) -> None:
    ids = [fill(broker_client, name, 10) for name in names]
    cursor = inspector.dead_page(QUEUE, 15).cursor
    DeadLetters(broker_client, names[1]).purge()
    page = inspector.dead_page(QUEUE, 100, cursor)
    assert [letter.id for _, letter in page] == ids[2]
    assert page.total == 20


def test_a_letter_is_found_in_any_list(inspector: Inspector, broker_client: redis.Redis, names: list[str]) -> None:
    for number, name in enumerate(names):
        ids = bury(broker_client, name, *(b"%d" % n for n in range(30)), at_ms=1000 * (number + 1))
        found = inspector.find_dead(QUEUE, ["0" * 16, ids[25], ids[5], "nobody"])
        assert {one: (letters.name, letter.message) for one, (letters, letter) in found.items()} == {
            ids[25]: (name, b"25"),
            ids[5]: (name, b"5"),
        }


def test_chunks_requeue_all_lists_with_new_counts(
    inspector: Inspector, broker_client: redis.Redis, names: list[str]
) -> None:
    for name in names:
        fill(broker_client, name, 10)
        bury(broker_client, name, b"garbage")
    chunks, cursor = [], None
    while not chunks or cursor:
        chunks.append(inspector.requeue_dead_some(QUEUE, 12, cursor))
        cursor = chunks[-1].cursor
    assert [chunk.changed + chunk.refused for chunk in chunks] == [12, 12, 9]
    assert sum(chunk.refused for chunk in chunks) == 3
    for name in names:
        requeued = [json.loads(raw) for raw in broker_client.lrange(name, 0, -1)][::-1]
        assert [found["headers"] for found in requeued] == [{"id": f"{name} {number}"} for number in range(10)]
    assert inspector.dead_total(QUEUE) == 3


def test_chunks_purge_all_lists(inspector: Inspector, broker_client: redis.Redis, names: list[str]) -> None:
    for name in names:
        fill(broker_client, name, 10)
    first = inspector.purge_dead_some(QUEUE, 25)
    assert (first.changed, first.refused) == (25, 0)
    second = inspector.purge_dead_some(QUEUE, 25, first.cursor)
    assert (second.changed, second.cursor) == (5, None)
    assert inspector.dead_total(QUEUE) == 0


@pytest.mark.parametrize(
    "cursor", ["", "x", cursors.encode(["celery"]), cursors.encode(["celery", "x"]), cursors.encode([1, None])]
)
def test_a_wrong_cursor_is_an_error(inspector: Inspector, cursor: str) -> None:
    for call in (inspector.dead_page, inspector.requeue_dead_some, inspector.purge_dead_some):
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            call(QUEUE, 10, cursor)
    with pytest.raises(ValueError, match="limit must be"):
        inspector.dead_page(QUEUE, 0)

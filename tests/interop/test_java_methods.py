"""RDelayedQueue's methods on entries of Celery: with `mirror_list` all of them work; without it, what Java sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from celery_delayq import DelayedQueue
from tests.interop.redisson import Redisson
from tests.ledger import Ledger
from tests.state import state
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

HOUR = 3600
MIRRORED = {"broker_transport_options": {"mirror_list": True}}


@pytest.fixture
def app(broker_client: redis.Redis, broker_url: str, ledger: Ledger) -> Iterator[Celery]:
    """An app that writes the delay list, too."""
    with publisher(broker_url, ledger.url, **MIRRORED) as app:
        yield app


@pytest.fixture
def queue(broker_client: redis.Redis) -> DelayedQueue:
    """The delayed queue in front of Celery's default queue."""
    return DelayedQueue(broker_client, "celery")


@pytest.fixture
def results(app: Celery) -> list[AsyncResult]:
    """Three tasks; the first that was offered is the last one due."""
    return [app.tasks["note"].apply_async((at,), countdown=HOUR * (3 - at)) for at in range(3)]


@pytest.fixture
def messages(results: list[AsyncResult], queue: DelayedQueue) -> list[bytes]:
    """Their messages as they wait in Redis, in the order of their offers."""
    return [entry.payload for entry in queue.peek(3)][::-1]


def waiting(queue: DelayedQueue) -> list[bytes]:
    """The messages that wait by the timeout set, in the order of their offers; the delay list says the same."""
    found = queue.peek(100)[::-1]
    assert queue.client.lrange(queue.keys.delay_list, 0, -1) == [entry.raw for entry in found]
    return [entry.payload for entry in found]


def test_methods_that_look(newest: Redisson, messages: list[bytes]) -> None:
    assert newest.call("size", "celery") == 3
    assert newest.call("contains", "celery", messages[1])
    assert not newest.call("contains", "celery", b"something else")
    assert newest.call("contains_all", "celery", *messages)
    assert newest.value("peek", "celery") == messages[0]
    assert newest.values("read_all", "celery") == messages
    assert newest.values("iterate", "celery") == messages


#: What Java calls, given the messages 0, 1, 2; which of them are left.
REMOVALS: dict[str, tuple[Callable[[Redisson, list[bytes]], Any], list[int]]] = {
    "remove": (lambda java, m: java.call("remove", "celery", m[1]), [0, 2]),
    "iterator": (lambda java, m: java.call("iterate_and_remove", "celery", m[1]), [0, 2]),
    "poll": (lambda java, m: java.call("poll", "celery"), [1, 2]),
    "poll(2)": (lambda java, m: java.call("poll", "celery", 2), [2]),
    "removeAll": (lambda java, m: java.call("remove_all", "celery", m[0], m[2]), [1]),
    "clear": (lambda java, m: java.call("size", "celery") and java.call("clear", "celery") is None, []),
    "delete": (lambda java, m: java.call("delete", "celery"), []),
}


@pytest.mark.parametrize("method", REMOVALS)
def test_methods_that_remove(
    newest: Redisson,
    messages: list[bytes],
    results: list[AsyncResult],
    queue: DelayedQueue,
    app: Celery,
    method: str,
) -> None:
    remove, left = REMOVALS[method]
    assert remove(newest, messages)
    assert waiting(queue) == [messages[at] for at in left]
    # What Java removed is no longer there to be cancelled; what it left, is.
    assert [app.delayq.cancel(result) for result in results] == [at in left for at in range(3)]
    queue.transfer()
    of_no_message = ("delayq:queues", "delayq:published:", "_kombu.binding", "{_kombu.binding}")
    assert not [key for key in state(queue.client) if not key.startswith(of_no_message)]


def test_poll_gives_the_message_to_java(newest: Redisson, messages: list[bytes]) -> None:
    assert newest.value("poll", "celery") == messages[0]
    assert newest.values("poll", "celery", 5) == messages[1:]
    assert newest.value("poll", "celery") is None


def test_retain_all_does_not_reach_the_timeout_set(
    newest: Redisson, messages: list[bytes], queue: DelayedQueue
) -> None:
    """A bug of Redisson (4.7): what retainAll removes is still delivered. The manual warns of it."""
    assert newest.call("retain_all", "celery", messages[1])
    assert newest.values("read_all", "celery") == [messages[1]]
    assert queue.size() == 3


def test_what_java_removed_does_not_run(
    newest: Redisson, app: Celery, queue: DelayedQueue, broker_url: str, ledger: Ledger
) -> None:
    removed, kept = (app.tasks["note"].apply_async((at,), countdown=2 + at).id for at in range(2))
    assert newest.call("remove", "celery", queue.peek()[0].payload)
    with Worker(broker=broker_url, ledger=ledger.url, conf=MIRRORED):
        wait_until(lambda: ledger.has([kept]), "the task that is due later ran", 30)
    assert not ledger.has([removed])


def test_an_id_that_java_removed_can_be_used_again(newest: Redisson, app: Celery, queue: DelayedQueue) -> None:
    """The place of the removed entry in the index misleads nobody."""
    note = app.tasks["note"]
    note.apply_async((1,), countdown=HOUR, task_id="again")
    assert newest.call("poll", "celery")
    note.apply_async((2,), countdown=HOUR, task_id="again")
    assert queue.size() == 1
    assert app.delayq.cancel("again")
    assert queue.size() == 0
    assert not app.delayq.cancel("again")


def test_what_java_does_not_see_without_the_delay_list(
    newest: Redisson, broker_url: str, ledger: Ledger, queue: DelayedQueue
) -> None:
    with publisher(broker_url, ledger.url) as app:
        result = app.tasks["note"].apply_async(countdown=HOUR)
        (entry,) = queue.peek()
        assert newest.call("size", "celery") == 0
        assert not newest.call("contains", "celery", entry.payload)
        assert not newest.call("remove", "celery", entry.payload)
        assert newest.values("read_all", "celery") == newest.values("iterate", "celery") == []
        assert newest.value("peek", "celery") is None
        assert newest.value("poll", "celery") is None
        assert queue.size() == 1
        assert newest.call("delete", "celery"), "delete() and clear() reach the timeout set all the same"
        assert queue.size() == 0
        assert not app.delayq.cancel(result)

"""`Unique(period=...)`: at most one task of a key in that time after it was sent, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chain

from celery_delayq import DelayedQueue, KeyHeld, NotAllSent, Throttle, Unique
from celery_delayq.queue import holds
from tests.integration.publishing import ready
from tests.ledger import Ledger
from tests.state import now_ms
from tests.support import is_raised, wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster(always=True)

KEY = "invoice:7"

LONG = Unique(key=KEY, period=timedelta(hours=1))
SHORT = Unique(key=KEY, period=0.5)


@pytest.fixture
def note(app: Celery, waiting: DelayedQueue) -> Any:
    return app.tasks["note"]


@pytest.fixture
def invoice(app: Celery, waiting: DelayedQueue) -> Iterator[Any]:
    """A task with a period in its decorator."""

    @app.task(name="invoice", unique=Unique(by=("order",), period=3600), shared=False)
    def invoice(order: int, text: str = "") -> None: ...

    yield invoice
    app.tasks.pop("invoice", None)


#: What may become of the first one, which is delayed.
FATES: dict[str, Callable[[Celery, Any], Any]] = {
    "it waits": lambda app, task: None,
    "it is rescheduled": lambda app, task: app.delayq.reschedule(task, countdown=7200),
    "it is updated": lambda app, task: app.delayq.update(task, args=("b",), priority=9),
    "it is cancelled": lambda app, task: app.delayq.cancel(task),
    "all are cancelled": lambda app, task: app.delayq.cancel_all(everything=True),
    "it is revoked": lambda app, task: app.control.revoke(task.id),
    "it is in its queue": lambda app, task: app.delayq.run_now(task),
    "its queue is purged": lambda app, task: (app.delayq.run_now(task), app.control.purge()),
}


@pytest.mark.parametrize("fate", FATES.values(), ids=FATES)
def test_no_other_one_is_sent(app: Celery, note: Any, fate: Callable[[Celery, Any], Any]) -> None:
    first = note.apply_async(("a",), countdown=600, priority=0, unique=LONG)
    assert app.delayq.was_new(first)
    fate(app, first)
    before = len(list(app.delayq.iter_scheduled()))
    for options in ({}, {"countdown": 60}, {"priority": 9, "countdown": 60}):
        result = note.apply_async(("b",), unique=LONG, **options)
        assert (result.id, app.delayq.was_new(result)) == (first.id, False)
    assert len(list(app.delayq.iter_scheduled())) == before
    assert (app.delayq.waiting(KEY) or None) == app.delayq.get(first), "whichever list it waits for"
    assert app.delayq.forget(KEY)
    assert not app.delayq.forget(KEY)
    assert app.delayq.was_new(note.apply_async(("c",), countdown=60, unique=LONG))


@pytest.mark.parametrize("outcome", ["succeeds", "fails", "retries"])
def test_a_task_that_ran_holds_its_key(
    app: Celery, note: Any, broker_url: str, ledger: Ledger, waiting: DelayedQueue, outcome: str
) -> None:
    task, args = {
        "succeeds": (note, ("a",)),
        "fails": (app.tasks["add"], (1, "x")),
        "retries": (app.tasks["try_again"], (2, 0.1)),
    }[outcome]
    result = task.apply_async(args, countdown=0.1, unique=LONG)
    with Worker(broker=broker_url, ledger=ledger.url):
        wait_until(result.ready, "it has ended")
        assert result.successful() == (outcome != "fails")
        assert task.apply_async(args, unique=LONG).id == result.id
    assert waiting.size() == 0


def test_the_key_is_free_when_the_period_is_over_though_the_task_waits(
    app: Celery, note: Any, waiting: DelayedQueue
) -> None:
    before = now_ms(waiting.client)
    first = note.apply_async(("a",), countdown=600, unique=SHORT)
    wait_until(lambda: note.apply_async(("b",), countdown=600, unique=SHORT).id != first.id, "another one is sent")
    assert now_ms(waiting.client) >= before + 500
    assert waiting.size() == 2
    assert app.delayq.cancel(first)


def test_the_message_carries_no_key(app: Celery, note: Any, waiting: DelayedQueue) -> None:
    """So nobody who gets it gives the key up, or renews it."""
    note.apply_async(("a",), unique=LONG)
    (message,) = ready(waiting.client)
    assert "delayq_unique" not in message["properties"]
    (hold,) = holds.holds_of(waiting.client, [waiting.keys], KEY)
    assert (hold.until, hold.waits) == ("period", False)
    assert 0 <= now_ms(waiting.client) + 3_600_000 - hold.ends_ms < 60_000


def test_keys_that_are_over_are_forgotten(note: Any, waiting: DelayedQueue) -> None:
    """Not all at once, but they do not become many."""
    for number in range(300):
        note.apply_async(countdown=600, unique=Unique(key=f"key {number}", period=0.001))
    assert waiting.client.hlen(waiting.keys.holds) < 150


def test_the_same_task_again(app: Celery, note: Any, waiting: DelayedQueue) -> None:
    """A caller whose tasks have ids that say what they are."""
    for options in ({"countdown": 600}, {"countdown": 601}, {}):
        result = note.apply_async(("a",), task_id="invoice-7", unique=LONG, **options)
        assert (result.id, result.was_new) == ("invoice-7", options == {"countdown": 600})
    assert waiting.size() == 1
    assert app.delayq.run_now("invoice-7")
    assert not note.apply_async(("a",), task_id="invoice-7", countdown=600, unique=LONG).was_new
    assert waiting.size() == 0


def test_in_the_decorator(app: Celery, invoice: Any, waiting: DelayedQueue) -> None:
    first = invoice.apply_async((7, "a"))
    assert invoice.apply_async((7, "b"), countdown=60).id == first.id
    assert invoice.apply_async((8, "b"), countdown=60).was_new
    assert invoice.apply_async((7,), unique="other").was_new
    assert not invoice.apply_async((7,), unique="other").was_new, "a key, with the period of the decorator"
    assert app.delayq.was_new(invoice.apply_async((7,), unique=None))
    with pytest.raises(KeyHeld, match=first.id):
        invoice.apply_async((7,), on_conflict="raise")
    with pytest.raises(ValueError, match="on_conflict must be"):
        invoice.apply_async((7,), on_conflict="replace")
    assert app.delayq.forget(invoice.s(7))


def test_many(app: Celery, invoice: Any, waiting: DelayedQueue) -> None:
    found = app.delayq.apply_async_many(invoice.s(number % 3).set(countdown=600 * (number % 2)) for number in range(12))
    assert [app.delayq.was_new(result) for result in found] == [True] * 3 + [False] * 9
    assert len({result.id for result in found}) == 3
    assert app.delayq.apply_async_many((invoice.s(number) for number in range(5)), results=False) == 2
    with pytest.raises(NotAllSent, match="KeyHeld"):
        app.delayq.apply_async_many([invoice.s(1).set(on_conflict="raise")])


def test_tasks_that_share_the_key_without_a_period(app: Celery, note: Any, waiting: DelayedQueue) -> None:
    first = note.apply_async(countdown=600, unique=LONG)
    for until in ("waiting", "until_done"):
        assert note.apply_async(countdown=600, unique=Unique(key=KEY, for_=until)).id == first.id
        assert note.apply_async(countdown=900, unique=KEY, on_conflict="extend").id == first.id
    assert waiting.size() == 1
    replacing = note.apply_async(countdown=600, unique=KEY, on_conflict="replace")
    assert replacing.was_new, "it takes the key"
    assert waiting.size() == 2, "and removes no task that has its key for a period"
    assert note.apply_async(countdown=600, unique=LONG).id == replacing.id
    assert app.delayq.cancel(replacing)
    assert note.apply_async(countdown=600, unique=LONG).was_new


def test_only_a_task_that_is_sent_takes_a_turn(app: Celery, note: Any, waiting: DelayedQueue) -> None:
    turns = Throttle("1/h", key="turns")
    first = note.apply_async(unique=LONG, throttle=turns)
    assert not note.apply_async(unique=LONG, throttle=turns).was_new
    second = note.apply_async(throttle=turns)
    assert timedelta(0) < app.delayq.get(second).due - app.delayq.get(first).due <= timedelta(hours=1)


def test_the_first_of_a_chain(note: Any, waiting: DelayedQueue) -> None:
    first = note.apply_async(countdown=600, unique=LONG)
    found = chain(note.si("b").set(unique=LONG), note.si("c")).apply_async()
    assert (found.parent.state, first.state) == ("REVOKED", "PENDING")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"period": 0}, ValueError, "period must be more than 0 and at most a year, not 0"),
        ({"period": timedelta(days=400)}, ValueError, "at most a year"),
        ({"period": "1h"}, TypeError, "period must be a number of seconds, or a timedelta, not '1h'"),
        ({"period": True}, TypeError, "period must be a number of seconds"),
        ({"period": float("nan")}, ValueError, "period must be"),
        ({"period": 60, "for_": "until_done"}, TypeError, "give it either a period, or for_ and ttl"),
        ({"period": 60, "ttl": 60}, TypeError, "give it either a period, or for_ and ttl"),
        (
            {"period": 60, "on_conflict": "extend"},
            ValueError,
            'on_conflict must be "ignore" or "raise", not \'extend\'',
        ),
    ],
)
def test_what_is_wrong(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with is_raised(error, match):
        Unique(**options)

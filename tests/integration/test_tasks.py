"""What a task may ask of Celery, with a delay: one prefork worker runs all of it on time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group

from tests.ledger import ALL_WELL, Ledger
from tests.support import lasting_keys, wait_until
from tests.worker_app import protocol_1
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster(always=True)

SOON_S = 0.4
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def worker(broker_url: str, ledger_url: str) -> Iterator[Worker]:
    with Worker(
        *("-E", "-Q", "celery,other"),
        pool="prefork",
        broker=broker_url,
        ledger=ledger_url,
        conf={"accept_content": ["json", "pickle"]},
        # Celery refuses pickle to root, as whom tests run in containers; the broker is private.
        env={"C_FORCE_ROOT": "1"},
    ) as worker:
        yield worker


@pytest.fixture
def tasks(app: Celery, worker: Worker, ledger: Ledger) -> Any:
    return app.tasks


def soon() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=SOON_S)


def ran_once_after(ledger: Ledger, task_id: str, not_before: float) -> None:
    assert ledger.verdict({task_id: not_before * 1000}) == ALL_WELL


def test_a_countdown(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + SOON_S
    result = tasks["note"].apply_async(("value",), countdown=SOON_S)
    assert result.get(timeout=TIMEOUT_S) == "value"
    ran_once_after(ledger, result.id, due)


def test_an_aware_eta_in_any_zone(tasks: Any, ledger: Ledger) -> None:
    due = soon()
    result = tasks["note"].apply_async(eta=due.astimezone(timezone(timedelta(hours=-7))))
    result.get(timeout=TIMEOUT_S)
    ran_once_after(ledger, result.id, due.timestamp())


def test_a_naive_eta_is_utc_as_in_a_celery_worker(tasks: Any, ledger: Ledger) -> None:
    due = soon()
    result = tasks["note"].apply_async(eta=due.replace(tzinfo=None))
    result.get(timeout=TIMEOUT_S)
    ran_once_after(ledger, result.id, due.timestamp())


def test_the_task_sees_its_eta_and_priority(tasks: Any, ledger: Ledger) -> None:
    due = soon()
    result = tasks["note_request"].apply_async(eta=due, priority=7)
    assert datetime.fromisoformat(result.get(timeout=TIMEOUT_S)) == due
    assert ledger.run_of(result.id).note["priority"] == 7
    ran_once_after(ledger, result.id, due.timestamp())


def test_retries_with_a_countdown(tasks: Any, ledger: Ledger) -> None:
    result = tasks["try_again"].apply_async((3, SOON_S))
    assert result.get(timeout=TIMEOUT_S) == 3
    attempts = [ledger.run_of(f"{result.id}/{n}").at_ms for n in range(4)]
    for before, after in pairwise(attempts):
        assert after - before >= SOON_S * 1000


def test_a_chain_with_countdowns(tasks: Any, ledger: Ledger) -> None:
    add = tasks["add"]
    due = time.time() + 2 * SOON_S
    result = chain(add.s(1, 2).set(countdown=SOON_S), add.s(3), add.s(4).set(countdown=SOON_S)).apply_async()
    assert result.get(timeout=TIMEOUT_S) == 10
    ran_once_after(ledger, result.id, due)


def test_a_group_with_one_countdown_for_all(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + SOON_S
    result = group(tasks["add"].s(n, n) for n in range(5)).apply_async(countdown=SOON_S)
    assert result.get(timeout=TIMEOUT_S) == [0, 2, 4, 6, 8]
    assert ledger.verdict({r.id: due * 1000 for r in result.results}) == ALL_WELL


def test_a_chord_whose_tasks_and_body_have_countdowns(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + 2 * SOON_S
    result = chord(
        [tasks["add"].s(n, n).set(countdown=SOON_S) for n in range(3)],
        tasks["total"].s().set(countdown=SOON_S),
    ).apply_async()
    assert result.get(timeout=TIMEOUT_S) == 6
    ran_once_after(ledger, result.id, due)


def test_links_run_after_the_task(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + SOON_S
    linked = tasks["add"].s(10).set(task_id="linked-1", countdown=SOON_S)
    tasks["add"].apply_async((1, 2), countdown=SOON_S, link=linked)
    wait_until(lambda: ledger.has(["linked-1"]), "the linked task ran", TIMEOUT_S)
    ran_once_after(ledger, "linked-1", due + SOON_S)


def test_a_task_that_expires_before_it_is_due_does_not_run(tasks: Any, ledger: Ledger) -> None:
    expired = tasks["note"].apply_async(countdown=2 * SOON_S, expires=SOON_S)
    in_time = tasks["note"].apply_async(countdown=3 * SOON_S, expires=60)
    in_time.get(timeout=TIMEOUT_S)
    wait_until(lambda: expired.state == "REVOKED", "the task is revoked", TIMEOUT_S)
    assert [run.task_id for run in ledger.runs()] == [in_time.id]


def test_every_priority(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + SOON_S
    promised = {tasks["note"].apply_async(countdown=SOON_S, priority=n).id: due * 1000 for n in range(10)}
    wait_until(lambda: ledger.has(promised), "all ran", TIMEOUT_S)
    assert ledger.verdict(promised) == ALL_WELL


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zlib"},
        {"serializer": "pickle"},
        {"serializer": "pickle", "compression": "bzip2"},
    ],
    ids=str,
)
def test_serializers_and_compression(tasks: Any, options: dict[str, Any]) -> None:
    value = {"text": "é" * 3000, "list": [], "dict": {}}
    result = tasks["note"].apply_async((value,), countdown=SOON_S, **options)
    assert result.get(timeout=TIMEOUT_S) == value


@pytest.mark.parametrize("task_id", ["7", "x" * 300, "order:42/{pay} é\u4e2d\U0001f600 'quoted' \"too\"\\", "a\nb"])
def test_task_ids_of_any_length_and_characters(tasks: Any, app: Celery, ledger: Ledger, task_id: str) -> None:
    due = time.time() + SOON_S
    tasks["note"].apply_async(task_id=task_id, countdown=SOON_S)
    tasks["note"].apply_async(task_id=task_id + "-cancelled", countdown=SOON_S)
    assert app.delayq.cancel(task_id + "-cancelled") is True
    wait_until(lambda: ledger.has([task_id]), "the task ran", TIMEOUT_S)
    ran_once_after(ledger, task_id, due)


def test_a_rate_limited_task(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + SOON_S
    promised = {tasks["limited"].apply_async(countdown=SOON_S).id: due * 1000 for _ in range(10)}
    wait_until(lambda: ledger.has(promised), "all ran", TIMEOUT_S)
    assert ledger.verdict(promised) == ALL_WELL
    first, *_, last = [run.at_ms for run in ledger.runs()]
    assert last - first >= 9 * 1000 / 20 * 0.8


def test_a_task_that_is_acknowledged_late(tasks: Any, ledger: Ledger, broker_client: redis.Redis) -> None:
    result = tasks["late_ack"].apply_async(countdown=SOON_S)
    assert result.get(timeout=TIMEOUT_S) is True
    wait_until(lambda: not broker_client.exists("unacked"), "it is acknowledged")
    ran_once_after(ledger, result.id, 0)


def test_another_queue_of_the_worker(tasks: Any, ledger: Ledger) -> None:
    due = time.time() + SOON_S
    result = tasks["note"].apply_async(countdown=SOON_S, queue="other")
    result.get(timeout=TIMEOUT_S)
    ran_once_after(ledger, result.id, due)


def test_message_protocol_1_is_held_by_the_worker_as_without_us(
    broker_url: str,
    ledger_url: str,
    app: Celery,
    tasks: Any,
    ledger: Ledger,
    broker_client: redis.Redis,
) -> None:
    due = time.time() + SOON_S
    with protocol_1(app):
        result = tasks["note"].apply_async(countdown=SOON_S)
        assert broker_client.keys("redisson_delay_queue_timeout:*") == []
    result.get(timeout=TIMEOUT_S)
    ran_once_after(ledger, result.id, due)


@pytest.mark.parametrize("length", [40, 60])
def test_a_long_chain_of_message_protocol_1_runs(app: Celery, tasks: Any, length: int) -> None:
    """Its messages nest all tasks that are to come."""
    with protocol_1(app):
        result = chain(tasks["add"].s(1, 0), *[tasks["add"].s(1)] * (length - 1)).apply_async()
    assert result.get(timeout=TIMEOUT_S) == length


def test_events_tell_of_a_delayed_task_what_they_tell_of_any(app: Celery, tasks: Any, ledger: Ledger) -> None:
    seen: list[str] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection,
            handlers={"*": lambda event: seen.append(f"{event['type']} {event.get('uuid')}")},
        )
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        thread.start()
        try:
            wait_until(lambda: seen, "a heartbeat of the worker")
            result = tasks["note"].apply_async(countdown=SOON_S)
            wait_until(lambda: f"task-succeeded {result.id}" in seen, "its last event", TIMEOUT_S)
        finally:
            receiver.should_stop = True
            thread.join(TIMEOUT_S)
    assert [line.split()[0] for line in seen if line.endswith(result.id)] == [
        "task-received",
        "task-started",
        "task-succeeded",
    ]


def test_nothing_of_all_this_is_left(tasks: Any, ledger: Ledger, broker_client: redis.Redis) -> None:
    tasks["note"].apply_async(countdown=SOON_S).get(timeout=TIMEOUT_S)
    always_there = ("_kombu.", "{_kombu.", "delayq:consumers:")  # the bindings, and the worker's leases
    wait_until(  # the worker acknowledges at about the time at which it stores the result
        lambda: (
            {name for name in lasting_keys(broker_client) if not name.startswith(always_there)} == {"delayq:queues"}
        ),
        "only the registry left",
    )

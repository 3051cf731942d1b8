"""A message that no worker can take becomes a dead letter with the reason, and the worker goes on."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from celery_delayq import DeadLetters
from celery_delayq.queue.dead_letter import INVALID_TASK, NOT_A_MESSAGE, DeadLetter
from tests import brokers
from tests.brokers import Server
from tests.integration import hostile
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


class Victim:
    """A worker that is given hostile messages."""

    def __init__(self, worker: Worker, app: Celery, client: redis.Redis, ledger: Ledger) -> None:
        self.worker = worker
        self.client = client
        self._app = app
        self.ledger = ledger

    def task(self, name: str = "late_ack", **options: Any) -> dict[str, Any]:
        """A message as Celery sends it."""
        self._app.send_task(name, queue="elsewhere", **options).forget()
        message: dict[str, Any] = json.loads(self.client.rpop("elsewhere"))
        return message

    def send(self, messages: Iterable[dict[str, Any]]) -> list[bytes]:
        """Publish messages; return their bytes."""
        raw = [json.dumps(message).encode() for message in messages]
        if raw:
            self.client.lpush("celery", *raw)
        return raw

    def send_raw(self, messages: Iterable[bytes]) -> None:
        """Publish messages."""
        self.client.lpush("celery", *messages)

    def ran(self) -> set[str]:
        """The ids of all tasks that ran; some change their id, to what is none."""
        return {run.task_id for run in self.ledger.runs() if isinstance(run.task_id, str)}

    def survives(self) -> list[DeadLetter]:
        """The worker runs what comes behind, and holds nothing then; return what was set aside, and forget it."""
        good = {str(uuid.uuid4()) for _ in range(4)}
        for task_id in good:
            self._app.send_task("note", task_id=task_id).forget()
        wait_until(lambda: good <= self.ran() or self.worker.has_ended, "what comes behind runs", 60)
        assert not self.worker.has_ended, self.worker.log
        wait_until(lambda: in_flight(self.client) == 0, "all is acknowledged", 20)
        letters = DeadLetters(self.client, "celery")
        found = list(letters)
        letters.purge()
        return found

    def knows(self) -> list[Any]:
        """What the worker takes for tasks that run, or are about to."""
        inspect = self._app.control.inspect(timeout=20, limit=1)
        return [task for tasks in (inspect.active(), inspect.reserved()) for task in next(iter((tasks or {}).values()))]


#: The pools differ, and do not know the broker.
POOLS = [
    "prefork",
    *(pytest.param(name, marks=pytest.mark.one_server("a pool is enough")) for name in ("threads", "solo")),
]


@pytest.fixture(scope="module", params=POOLS)
def pool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def victim(broker_server: Server, ledger_url: str, pool: str) -> Iterator[Victim]:
    """One worker for all: it is to survive."""
    url, ledger = brokers.url_of(broker_server), Ledger(ledger_url)
    ledger.clear()
    with (
        broker_server.client() as client,
        publisher(url, ledger.url) as app,
        long_worker(broker=url, ledger=ledger, pool=pool) as worker,
    ):
        client.flushall()
        yield Victim(worker, app, client, ledger)
    ledger.client.close()


def test_what_ends_a_stock_worker_is_set_aside_with_the_reason(victim: Victim) -> None:
    message = victim.task(task_id="the-id")
    raw = victim.send(hostile.changed(message, *change) for change in hostile.DEADLY.values())
    letters = {letter.message: letter for letter in victim.survives()}
    for what, sent in zip(hostile.DEADLY, raw, strict=True):
        if what == "embed is a number" and sent not in letters:
            continue  # a child process or a thread has failed the task
        letter = letters.pop(sent)
        assert letter.reason == (NOT_A_MESSAGE if letter.error is None else INVALID_TASK), what
    assert not letters
    assert "late_ack" in victim.worker.log
    assert victim.worker.log.count("became a dead letter") >= len(hostile.DEADLY) - 1


def test_no_field_of_any_type_ends_a_worker(victim: Victim) -> None:
    victim.send(hostile.every_change(victim.task(task_id="the-id")))
    assert victim.survives()
    wait_until(lambda: not victim.knows(), "it has forgotten them", 20)


def test_nor_does_any_of_a_task_that_it_does_not_know(victim: Victim) -> None:
    victim.send(hostile.every_change(victim.task("nobody-knows", task_id="the-id")))
    assert victim.survives()


#: Pickle, by which a prefork worker sends headers to its processes, gives up from a depth of some hundred (Python 3.11)
#: or some thousand (3.13) on; JSON's decoder later.
DEPTHS = [150, 900, 4000, 5000, 9900]


def test_nor_does_what_is_nested_too_deep_for_a_process_of_the_pool(victim: Victim) -> None:
    message = victim.task(task_id="the-id")
    paths = [("headers", "group"), ("headers", "anything"), ("properties", "delivery_info"), ("properties", "anything")]
    sent = [hostile.nested(message, path, depth) for path in paths for depth in DEPTHS]
    victim.send_raw(sent)
    letters = victim.survives()
    assert {letter.message for letter in letters} == {*sent}
    assert {letter.reason for letter in letters} <= {NOT_A_MESSAGE, INVALID_TASK}


def test_nor_does_a_body_that_is_nested_about_as_deep_as_pickle_takes(victim: Victim) -> None:
    """How deep that is depends on the version of Python; since 3.14, on the size of the stack."""
    taken, refused = 0, 100_000
    while refused - taken > 1:
        middle = (taken + refused) // 2
        try:
            pickle.dumps(json.loads("[" * middle + "]" * middle))
            taken = middle
        except RecursionError:
            refused = middle
    message = {**victim.task(), "headers": {}}
    start = '{"task": "late_ack", "id": "the-id", "kwargs": {}, "args": ['
    bodies = [start + "[" * depth + "]" * depth + "]}" for depth in range(taken - 300, taken + 300, 20)]
    raw = victim.send([{**message, "body": base64.b64encode(body.encode()).decode()} for body in bodies])
    letters = {letter.message for letter in victim.survives()}
    assert 0 < len(letters) < len(raw)
    assert letters == {*raw[-len(letters) :]}


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **{(name,): st.sampled_from(hostile.VALUES) for name in hostile.PARTS},
        **{("headers", name): st.sampled_from(hostile.VALUES) for name in hostile.HEADERS},
        **{("properties", name): st.sampled_from(hostile.VALUES) for name in hostile.PROPERTIES},
        ("body",): st.sampled_from([hostile.body(value) for value in hostile.BODIES]),
    },
)


def test_no_mixture_of_them_does(victim: Victim) -> None:
    good = victim.task(task_id="the-id")

    @settings(derandomize=True, max_examples=10, deadline=None, phases=[Phase.generate], database=None)
    @given(st.lists(MESSAGES, min_size=20, max_size=20))
    def try_them(batch: list[dict[tuple[str, ...], Any]]) -> None:
        victim.send(mixed(good, changes) for changes in batch)
        victim.survives()

    try_them()


def mixed(message: dict[str, Any], changes: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """A message with several things wrong, as far as one leaves room for another."""
    for path, value in sorted(changes.items(), key=lambda change: -len(change[0])):
        message = hostile.changed(message, path, value)
    return message


def test_what_would_show_only_when_a_process_is_free_is_set_aside_at_once(victim: Victim, pool: str) -> None:
    """Celery looks at some of it only then, as the task is given to the pool, or even as it begins."""
    if pool == "solo":
        pytest.skip("it takes nothing while it is busy")
    busy = {"busy-1", "busy-2"}
    victim.send(victim.task("gated", task_id=task_id) for task_id in sorted(busy))
    wait_until(lambda: busy <= victim.ran(), "all processes are busy", 20)
    message = victim.task(task_id="the-id")
    first = {"task": "late_ack", "id": "the-id", "args": [], "kwargs": {}, "timelimit": [1]}
    raw = victim.send(
        [
            hostile.changed(message, ("headers", "timelimit"), "x"),
            hostile.changed(message, ("headers", "timelimit"), ["a", 1]),
            hostile.changed(message, ("headers", "stamped_headers"), 5),
            {**message, "headers": {}, "body": hostile.body(first)},
        ]
    )
    letters = DeadLetters(victim.client, "celery")
    wait_until(lambda: {letter.message for letter in letters} == set(raw), "they are dead letters", 20)
    assert "its timelimit must be two numbers, not 'x'" in {letter.error for letter in letters}
    open_gate(victim.ledger)
    victim.survives()

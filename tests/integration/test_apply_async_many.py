"""`delayq.apply_async_many`: the messages of `apply_async`, in a few round trips, and an answer for each."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, chain, group, signals
from celery.canvas import Signature
from celery.result import AsyncResult
from kombu.utils.json import loads

from celery_delayq import ConfigurationError, DelayedQueue, NotAllSent
from celery_delayq.queue.registry import registered
from examples.private_redis import PrivateRedis
from tests.integration.monitoring import task_events
from tests.integration.publishing import stored
from tests.ledger import ALL_WELL, Ledger
from tests.state import calls
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

LATER = datetime.now(timezone.utc) + timedelta(days=1)


def note(app: Celery, *args: Any, **options: Any) -> Signature:
    """The signature of a task that is due tomorrow, unless options say otherwise."""
    return app.tasks["note"].s(*args).set(**{"eta": LATER, **options})


@contextmanager
def published() -> Iterator[list[str]]:
    """Collect the ids that `before_task_publish` and `after_task_publish` name while the block lasts."""
    heard: list[str] = []

    def before(headers: dict[str, Any], **kwargs: Any) -> None:
        heard.append("before " + headers["id"])

    def after(headers: dict[str, Any], **kwargs: Any) -> None:
        heard.append("after " + headers["id"])

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        yield heard
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)


def mixture(app: Celery) -> list[Signature]:
    """Signatures of every kind, with ids of their own."""
    stamped = note(app, "stamped", task_id="stamped")
    stamped.stamp(customer="7")
    return [
        note(app, "delayed", task_id="delayed"),
        note(app, "now", task_id="now", eta=None),
        note(app, "elsewhere", task_id="elsewhere", queue="other", priority=6),
        note(app, "now elsewhere", task_id="now elsewhere", queue="other", priority=6, eta=None),
        note(app, "headers", task_id="headers", headers={"x": 1}, expires=LATER + timedelta(1)),
        note(app, ["large"] * 999, task_id="large", compression="zlib"),
        note(app, "ignored", task_id="ignored", ignore_result=True),
        note(app, "with a callback", task_id="callback", link=app.tasks["note"].s()),
        stamped,
    ]


@pytest.mark.usefixtures("waiting", "ledger")
def test_the_messages_are_those_of_apply_async(app: Celery, broker_client: redis.Redis) -> None:
    for signature in mixture(app):
        signature.apply_async()
    own = ("delivery_tag", "reply_to", "correlation_id", "expiration")
    expected = stored(broker_client, without=own)
    broker_client.flushall()
    results = app.delayq.apply_async_many(mixture(app))
    found = stored(broker_client, without=own)
    assert found.keys() == expected.keys()
    for name, messages in expected.items():
        for message, other in zip(found[name], messages, strict=True):
            assert message == other
    assert [result.id for result in results] == [signature.options["task_id"] for signature in mixture(app)]


@pytest.mark.usefixtures("ledger")
def test_thousands_take_a_few_round_trips(app: Celery, waiting: DelayedQueue) -> None:
    client = waiting.client
    app.delayq.apply_async_many([note(app)])
    client.config_resetstat()
    results = app.delayq.apply_async_many((note(app, number) for number in range(2500)), chunk_size=1000)
    assert len({result.id for result in results}) == 2500
    assert waiting.size() == 2501
    assert calls(client, "evalsha") <= 2500 / 20
    assert calls(client, "sadd") <= 3
    assert calls(client, "eval") == 0


@pytest.mark.usefixtures("ledger")
def test_entries_of_one_due_time_keep_their_order(app: Celery, waiting: DelayedQueue) -> None:
    results = app.delayq.apply_async_many(note(app) for _ in range(50))
    ids = [loads(entry.payload.decode())["headers"]["id"] for entry in waiting.peek(50)]
    assert ids == [result.id for result in results]


@pytest.mark.usefixtures("ledger")
def test_one_signature_may_be_sent_many_times(app: Celery, waiting: DelayedQueue) -> None:
    signature = note(app)
    assert len({result.id for result in app.delayq.apply_async_many([signature] * 3)}) == 3
    assert "task_id" not in signature.options
    assert app.delayq.apply_async_many([]) == []


@pytest.mark.usefixtures("waiting", "ledger")
def test_signals_and_sent_events_are_those_of_each_task(
    broker_url: str, ledger_url: str, broker_client: redis.Redis
) -> None:
    with (
        publisher(broker_url, ledger_url, task_send_sent_event=True) as app,
        published() as heard,
        task_events(app, broker_client, "task-sent") as events,
    ):
        results = app.delayq.apply_async_many([note(app), note(app, eta=None)])
        wait_until(lambda: len(events) == 2, "the events")
    assert [event["uuid"] for event in events] == [result.id for result in results]
    assert heard == [f"{when} {result.id}" for result in results for when in ("before", "after")]


def test_eager_tasks_run_here(broker_url: str, ledger: Ledger) -> None:
    with publisher("delayq://nowhere.invalid:1/0", ledger.url, task_always_eager=True) as app:
        assert [result.get() for result in app.delayq.apply_async_many([note(app, 1), note(app, 2)])] == [1, 2]


def test_workers_run_each_once_and_on_time(app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger) -> None:
    due = {str(number): LATER for number in range(200)}
    with Worker(broker=broker_url, ledger=ledger.url):
        start = datetime.now(timezone.utc)
        due = {str(number): start + timedelta(milliseconds=1000 + 3 * number) for number in range(200)}
        app.delayq.apply_async_many(
            (note(app, task_id=task_id, eta=eta) for task_id, eta in due.items()), chunk_size=30
        )
        promised = {task_id: eta.timestamp() * 1000 for task_id, eta in due.items()}
        wait_until(lambda: ledger.has(promised), "all ran")
    assert ledger.verdict(promised) == ALL_WELL
    assert waiting.size() == 0


@pytest.mark.usefixtures("ledger")
def test_scripts_that_the_server_has_lost_lose_and_double_nothing(app: Celery, waiting: DelayedQueue) -> None:
    app.delayq.apply_async_many([note(app)])
    waiting.client.script_flush()
    results = app.delayq.apply_async_many(note(app) for _ in range(10))
    assert len(results) == 10
    assert waiting.size() == 11


@pytest.mark.usefixtures("ledger")
def test_keys_have_their_prefix(broker_url: str, ledger_url: str, broker_client: redis.Redis) -> None:
    options = {"global_keyprefix": "shop:"}
    with publisher(broker_url, ledger_url, broker_transport_options=options) as app:
        app.delayq.apply_async_many([note(app), note(app, eta=None)])
    assert DelayedQueue(broker_client, "shop:celery").size() == 1
    assert broker_client.llen("shop:celery") == 1
    assert registered(broker_client, "shop:") == {"shop:celery"}


class TestWithoutResults:
    def test_it_returns_how_many_were_sent(self, app: Celery, waiting: DelayedQueue) -> None:
        assert (
            app.delayq.apply_async_many((note(app, number) for number in range(25)), chunk_size=10, results=False) == 25
        )
        assert app.delayq.apply_async_many([], results=False) == 0
        assert waiting.size() == 25

    @pytest.mark.usefixtures("waiting")
    def test_memory_does_not_grow_with_the_number_of_tasks(self, app: Celery) -> None:
        """Of tasks with a template, single tasks and notes of the result backend there is never more than a chunk."""
        alive: list[int] = []

        def signatures() -> Iterator[Signature]:
            for number in range(1000):
                yield note(app, number, **({} if number % 2 else {"headers": {"x": 1}}))
                if number % 100 == 99:
                    alive.append(sum(type(one) in (Signature, AsyncResult) for one in gc.get_objects()))

        gc.collect()
        before = len(app.backend.result_consumer.subscribed_to)
        assert app.delayq.apply_async_many(signatures(), chunk_size=50, results=False) == 1000
        assert max(alive[1:]) <= alive[0] + 10
        assert len(app.backend.result_consumer.subscribed_to) <= before + 10

    def test_eager_tasks_run_here(self, ledger: Ledger) -> None:
        with publisher("delayq://nowhere.invalid:1/0", ledger.url, task_always_eager=True) as app:
            assert app.delayq.apply_async_many([note(app, 1), note(app, 2)], results=False) == 2
        assert len(ledger.runs()) == 2

    def test_an_error_says_how_many_were_sent(self, app: Celery, waiting: DelayedQueue) -> None:
        with pytest.raises(NotAllSent, match=r"^15 tasks were sent, and 1 failed") as caught:
            app.delayq.apply_async_many([*(note(app) for _ in range(15)), app.tasks["add"].s()], results=False)
        assert (caught.value.sent, caught.value.results) == (15, [])
        assert waiting.size() == 15


class TestErrors:
    @pytest.mark.usefixtures("waiting")
    def test_they_name_the_first_cause_in_the_order_of_the_tasks(self, app: Celery, broker_client: redis.Redis) -> None:
        broker_client.set("redisson_delay_queue_timeout:{other}", "of a wrong type")
        bad = app.tasks["add"].s("too few")
        with pytest.raises(NotAllSent, match=r"First error: ResponseError: .*WRONGTYPE") as caught:
            app.delayq.apply_async_many([note(app, task_id="a"), note(app, task_id="b", queue="other"), bad])
        assert [getattr(signature, "id", None) for signature, _ in caught.value.failed] == ["b", bad.id]
        with pytest.raises(NotAllSent, match=r"First error: TypeError: .*add\(\) missing"):
            app.delayq.apply_async_many([bad])

    @pytest.mark.parametrize(
        ("sent", "text"),
        [
            (0, "No task was sent, and 1 failed. First error: TypeError: "),
            (1, "1 task was sent, and 1 failed. First error: TypeError: "),
            (2, "2 tasks were sent, and 1 failed. First error: TypeError: "),
        ],
    )
    @pytest.mark.usefixtures("waiting")
    def test_they_count_in_whole_sentences(self, app: Celery, sent: int, text: str) -> None:
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many([*(note(app) for _ in range(sent)), app.tasks["add"].s("too few")])
        assert str(caught.value).startswith(text)

    def test_they_can_be_stored_as_results(self, app: Celery) -> None:
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many([app.tasks["add"].s()])
        stored_error = app.backend.exception_to_python(app.backend.prepare_exception(caught.value, "json"))
        assert type(stored_error) is NotAllSent
        assert str(stored_error) == str(caught.value)

    @pytest.mark.usefixtures("waiting")
    def test_those_of_a_call_within_a_call_are_told_apart(self, app: Celery) -> None:
        def signatures() -> Iterator[Signature]:
            yield note(app)
            app.delayq.apply_async_many([app.tasks["add"].s()])

        with pytest.raises(
            NotAllSent,
            match=r"^1 task was sent\. First error: NotAllSent: No task was sent, and",
        ) as caught:
            app.delayq.apply_async_many(signatures())
        assert isinstance(caught.value.__cause__, NotAllSent)

    @pytest.mark.usefixtures("ledger")
    def test_a_bad_one_in_the_middle_ends_it_and_says_what_was_sent(self, app: Celery, waiting: DelayedQueue) -> None:
        good = [note(app, number) for number in range(25)]
        bad = app.tasks["add"].s("too few")
        rest = iter([*good[:15], bad, *good[15:]])
        with pytest.raises(NotAllSent, match="15 tasks were sent, and 1 failed") as caught:
            app.delayq.apply_async_many(rest, chunk_size=10)
        error = caught.value
        assert len(error.results) == waiting.size() == 15
        ((signature, reason),) = error.failed
        assert signature is bad
        assert isinstance(reason, TypeError)
        assert error.__cause__ is reason
        assert error.uncertain == []
        app.delayq.apply_async_many(rest)
        assert waiting.size() == 25

    @pytest.mark.usefixtures("ledger")
    def test_an_iterable_that_fails_does_not_lose_what_it_gave(self, app: Celery, waiting: DelayedQueue) -> None:
        def broken() -> Iterator[Signature]:
            yield note(app)
            raise KeyError("of the caller")

        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many(broken())
        assert isinstance(caught.value.__cause__, KeyError)
        assert len(caught.value.results) == waiting.size() == 1

    @pytest.mark.usefixtures("ledger")
    @pytest.mark.parametrize("places", ["cococo", "cccooo", "oooccc", "coooco"])
    def test_a_queue_that_the_server_refuses_fails_alone(
        self, app: Celery, waiting: DelayedQueue, broker_client: redis.Redis, places: str
    ) -> None:
        queues = {"c": "celery", "o": "other"}
        broker_client.set("redisson_delay_queue_timeout:{other}", "of a wrong type")
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many(note(app, task_id=str(n), queue=queues[c]) for n, c in enumerate(places))
        error = caught.value
        assert [places[int(result.id)] for result in error.results] == ["c"] * places.count("c")
        assert [places[int(signature.id)] for signature, _ in error.failed] == ["o"] * places.count("o")
        assert "WRONGTYPE" in str(error.__cause__)
        assert waiting.size() == places.count("c")
        broker_client.delete("redisson_delay_queue_timeout:{other}")
        app.delayq.apply_async_many(signature for signature, _ in error.failed)
        assert DelayedQueue(broker_client, "other").size() == places.count("o")

    @pytest.mark.usefixtures("ledger")
    def test_what_was_stored_is_not_said_to_have_failed(
        self, app: Celery, waiting: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server whose memory is full after it has stored them refuses to register their queue again."""
        app.delayq.apply_async_many([note(app)])
        waiting.client.delete(waiting.keys.timeout_set, waiting.keys.index)
        register = DelayedQueue.register

        def full(queue: DelayedQueue, *, again: bool = False) -> bool:
            if again:
                raise redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
            return register(queue)

        monkeypatch.setattr(DelayedQueue, "register", full)
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many(note(app) for _ in range(3))
        assert caught.value.failed == []
        assert len(caught.value.uncertain) == waiting.size() == 3
        assert str(caught.value).startswith("No task was sent, and 3 are uncertain. First error: ")
        assert str(caught.value.__cause__).startswith("stored, but")

    def test_a_connection_that_is_lost_leaves_ids_to_ask_for(self, ledger: Ledger) -> None:
        with PrivateRedis() as server, publisher(f"delayq://127.0.0.1:{server.port}/0", ledger.url) as app:
            app.delayq.apply_async_many([note(app)])

            def signatures() -> Iterator[Signature]:
                for number in range(30):
                    if number == 25:
                        server.kill()
                    yield note(app, number)

            with pytest.raises(NotAllSent) as caught:
                app.delayq.apply_async_many(signatures(), chunk_size=10)
            error = caught.value
            assert len(error.results) == 20
            assert len(error.uncertain) == 10
            assert len({signature.id for signature in error.uncertain}) == 10
            assert isinstance(error.__cause__, redis.RedisError)
            server.start()
            assert [app.delayq.cancel(signature.id) for signature in error.uncertain] == [False] * 10
            assert len(app.delayq.apply_async_many(error.uncertain)) == 10

    @pytest.mark.parametrize("kind", [group, chain, str])
    def test_it_takes_single_tasks(self, app: Celery, waiting: DelayedQueue, kind: Any) -> None:
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many([kind([note(app), note(app)])])
        assert "needs signatures of single tasks" in str(caught.value.__cause__)
        assert waiting.size() == 0

    @pytest.mark.parametrize("chunk_size", [0, -1, 1.5, True])
    def test_a_chunk_has_a_size(self, app: Celery, chunk_size: Any) -> None:
        with pytest.raises(ValueError, match="chunk_size must be"):
            app.delayq.apply_async_many([], chunk_size=chunk_size)

    def test_another_broker_is_refused(self, redis_server: PrivateRedis, ledger_url: str) -> None:
        with (
            publisher(redis_server.url, ledger_url) as app,
            pytest.raises(ConfigurationError, match="start the URL with delayq://"),
        ):
            app.delayq.apply_async_many([note(app)])


@pytest.mark.usefixtures("ledger")
def test_what_other_threads_publish_meanwhile_is_sent_at_once(app: Celery, waiting: DelayedQueue) -> None:
    def signatures() -> Iterator[Signature]:
        yield note(app)
        thread = threading.Thread(target=note(app).apply_async)
        thread.start()
        thread.join()
        note(app).apply_async()
        assert waiting.size() == 2

    assert len(app.delayq.apply_async_many(signatures())) == 1
    assert waiting.size() == 3

"""The message of an occurrence: built by Celery, caught, and counted from the occurrence."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.beat import BeatLazyFunc
from dateutil.parser import isoparse
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_delayq import ConfigurationError
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.message import Builder, CannotSend
from celery_delayq.schedule.occurrences import jitter_ms, to_ms
from celery_delayq.schedule.scripts import Message
from tests.state import FAR
from tests.work import calls_in
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster


@pytest.fixture
def send(app: Celery) -> Iterator[Callable[..., Message]]:
    """Build the message of the occurrence at FAR."""
    with app.connection_for_write() as connection:
        producer = app.amqp.Producer(connection, auto_declare=False)

        def send(lateness_s: float = 0.0, **entry: Any) -> Message:
            one = Definition.of("e", {"task": "note", "schedule": 60, **entry}, app)
            return built(Builder(app, producer), one, lateness_s=lateness_s)

        yield send


def built(builder: Builder, definition: Definition, at_ms: int = FAR, lateness_s: float = 0.0) -> Message:
    """Build a message of a task that sends one."""
    found = builder.build(definition, at_ms, lateness_s)
    assert found is not None
    return found


def headers(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.payload)["headers"]
    return found


def expires_ms(message: Message) -> int:
    return to_ms(isoparse(headers(message)["expires"]))


def test_is_due_at_the_occurrence(send: Callable[..., Message]) -> None:
    found = send()
    assert found.queue == "celery"
    assert found.due_ms == FAR
    assert headers(found)["celery_beat_task"] is True


def test_countdown_and_jitter_add_to_it(send: Callable[..., Message]) -> None:
    found = send(options={"countdown": 1.5}, timing={"jitter": 5})
    due_ms = FAR + 1500 + jitter_ms("e", FAR, 5000)
    assert found.due_ms == due_ms
    assert to_ms(isoparse(headers(found)["eta"])) == due_ms


@pytest.mark.parametrize(
    ("expires", "lateness_s", "after_ms"), [(10, 0, 10_000), (None, 5, 6_000), (10, 5, 6_000), (3, 5, 3_000)]
)
def test_expiry_counts_from_it(
    send: Callable[..., Message], expires: int | None, lateness_s: float, after_ms: int
) -> None:
    """`expires` from when beat would send it, `max_lateness` from when it is due: with a countdown, that is later."""
    assert expires_ms(send(lateness_s, options={"expires": expires, "countdown": 1})) == FAR + after_ms


@pytest.mark.parametrize(
    "expires", [datetime(2200, 1, 1, tzinfo=timezone.utc), "2200-01-01T00:00:00", "2200-01-01T02:00:00+02:00"], ids=str
)
def test_a_fixed_expiry_lets_it_wait(send: Callable[..., Message], expires: Any) -> None:
    assert send(options={"expires": expires}).can_wait
    assert send(5, options={"expires": expires}).can_wait


def nothing() -> None:
    """A task that does nothing."""


@pytest.fixture
def expiring(app: Celery) -> Iterator[str]:
    """The name of a task that expires after 10 seconds."""
    app.task(name="expiring", expires=10, lazy=False, shared=False)(nothing)
    yield "expiring"
    app.tasks.unregister("expiring")


@pytest.mark.parametrize(
    ("options", "lateness_s", "after_ms"),
    [({}, 0, 10_000), ({"expires": 3}, 0, 3_000), ({}, 5, 6_000), ({}, 50, 10_000)],
    ids=str,
)
def test_expiry_of_its_task_counts_from_it(
    send: Callable[..., Message], expiring: str, options: dict[str, Any], lateness_s: float, after_ms: int
) -> None:
    found = send(lateness_s, task=expiring, options={"countdown": 1, **options})
    assert expires_ms(found) == FAR + after_ms
    assert found.can_wait


def test_an_entry_can_say_that_its_task_does_not_expire(send: Callable[..., Message], expiring: str) -> None:
    assert headers(send(task=expiring, options={"expires": None}))["expires"] is None


@pytest.mark.parametrize(
    "app_sets", [{"countdown": 5}, {"expires": 5}, {"eta": datetime(2020, 1, 1, tzinfo=timezone.utc)}]
)
def test_it_is_built_when_it_is_due_if_the_app_gives_it_another_time(
    send: Callable[..., Message], app: Celery, app_sets: dict[str, Any]
) -> None:
    """Such a time may count from now."""

    class Own(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().apply_async(args, kwargs, **{**options, **app_sets})

    app.task(name="own", base=Own, lazy=False, shared=False)(nothing)
    try:
        assert send().can_wait
        assert not send(task="own").can_wait
    finally:
        app.tasks.unregister("own")


def test_it_is_built_when_it_is_due_if_the_entry_has_an_eta(send: Callable[..., Message]) -> None:
    assert not send(options={"eta": "2020-01-01T00:00:00+00:00"}).can_wait


def test_limits_of_time_are_not_times(send: Callable[..., Message]) -> None:
    found = send(options={"time_limit": 9, "soft_time_limit": 8, "stamped_headers": ["by"], "by": "me"})
    assert (headers(found)["timelimit"], headers(found)["stamps"]) == ([9, 8], {"by": "me"})
    assert found.can_wait


@pytest.mark.parametrize("times", [1, 2])
def test_protocol_1_of_celery_is_caught(broker_url: str, ledger_url: str, times: int) -> None:
    """Where the id of the task is not in the headers."""
    with publisher(broker_url, ledger_url, task_protocol=1) as app, app.connection_for_write() as connection:
        builder = Builder(app, app.amqp.Producer(connection, auto_declare=False))
        one = Definition.of("e", {"task": "note", "schedule": 60}, app)
        for _ in range(times):
            found = built(builder, one)
            assert (found.queue, found.due_ms, found.can_wait) == ("celery", FAR, True)


def test_a_unique_key_is_refused_with_protocol_1(broker_url: str, ledger_url: str) -> None:
    with publisher(broker_url, ledger_url, task_protocol=1) as app, app.connection_for_write() as connection:
        builder = Builder(app, app.amqp.Producer(connection, auto_declare=False))
        one = Definition.of("e", {"task": "note", "schedule": 60, "options": {"unique": "k"}}, app)
        with pytest.raises(ConfigurationError, match="task_protocol = 2"):
            builder.build(one, FAR)


def test_nothing_is_sent(send: Callable[..., Message], app: Celery) -> None:
    send()
    send(task="unknown")
    with app.connection_for_write() as connection:
        assert connection.default_channel.delayed_queue("celery").size() == 0


def test_lazy_arguments_are_evaluated_when_it_is_built(send: Callable[..., Message]) -> None:
    found = send(task="add", args=[BeatLazyFunc(lambda: "now")], kwargs={"y": BeatLazyFunc(date, 1970, 1, 2)})
    assert "now" in headers(found)["argsrepr"]
    assert "1970" in headers(found)["kwargsrepr"]


class TestLaterOnes:
    """Messages after the first of a task: made after its model, and the same as Celery would have made."""

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            {"task": "add", "args": [[3]], "kwargs": {"y": None}},
            {
                "options": {
                    "priority": 3,
                    "headers": {"mine": 1},
                    "time_limit": 9,
                    "countdown": 1.5,
                    "ignore_result": True,
                }
            },
            {"options": {"expires": 60, "queue": "special"}},
            {"options": {"expires": 60, "delayq": {"missed": "skip"}}},
            {"task": "unknown", "args": ["x" * 2000]},
            {"options": {"link": {"task": "other"}}},
            {"options": {"compression": "zlib"}, "args": [1]},
            {"options": {"serializer": "pickle"}, "args": [1]},
        ],
        ids=str,
    )
    def test_are_as_celery_makes_them(self, app: Celery, entry: dict[str, Any]) -> None:
        with app.connection_for_write() as connection:
            producer = app.amqp.Producer(connection, auto_declare=False)
            one = Definition.of("e", {"task": "note", "schedule": 60, "timing": {"jitter": 9}, **entry}, app)
            other = replace(one, name="other", args=("other",))
            builder = Builder(app, producer)
            builder.build(one, FAR - 60_000)
            for later in (one, other):
                found, wanted = (built(maker, later) for maker in (builder, Builder(app, producer)))
                assert found.queue == wanted.queue
                assert found.due_ms == wanted.due_ms
                assert anonymous(found) == anonymous(wanted)

    def test_have_ids_of_their_own(self, app: Celery) -> None:
        with app.connection_for_write() as connection:
            builder = Builder(app, app.amqp.Producer(connection, auto_declare=False))
            one = Definition.of("e", {"task": "note", "schedule": 60}, app)
            made = [built(builder, one, at_ms=FAR + n) for n in range(3)]
        for message in made:
            assert headers(message)["id"] == headers(message)["root_id"] == message.task_id
        assert len({json.loads(message.payload)["properties"]["delivery_tag"] for message in made}) == 3

    def test_cost_a_quarter(self, app: Celery) -> None:
        with app.connection_for_write() as connection:
            producer = app.amqp.Producer(connection, auto_declare=False)
            builder = Builder(app, producer)
            first = Definition.of("e", {"task": "note", "schedule": 60, "args": [1]}, app)
            builder.build(first, FAR)  # Celery does some things once for an app
            by_celery = calls_in(Builder(app, producer).build, first, FAR)
            builder.build(first, FAR)
            assert calls_in(builder.build, first, FAR) < by_celery / 4

    def test_are_checked_as_well(self, app: Celery) -> None:
        with app.connection_for_write() as connection:
            builder = Builder(app, app.amqp.Producer(connection, auto_declare=False))
            one = Definition.of("e", {"task": "add", "schedule": 60, "args": [1, 2]}, app)
            builder.build(one, FAR)
            with pytest.raises(TypeError):
                builder.build(replace(one, args=(1, 2, 3)), FAR)

    def test_evaluate_lazy_arguments_each_time(self, app: Celery) -> None:
        numbers = itertools.count()
        with app.connection_for_write() as connection:
            builder = Builder(app, app.amqp.Producer(connection, auto_declare=False))
            one = Definition.of(
                "e", {"task": "note", "schedule": 60, "args": [BeatLazyFunc(lambda: next(numbers))]}, app
            )
            found = [headers(built(builder, one))["argsrepr"] for _ in range(3)]
        assert found == ["[0]", "[1]", "[2]"]

    def test_are_seen_by_who_begins_to_listen(self, app: Celery) -> None:
        seen = []
        with app.connection_for_write() as connection:
            builder = Builder(app, app.amqp.Producer(connection, auto_declare=False))
            one = Definition.of("e", {"task": "note", "schedule": 60}, app)
            builder.build(one, FAR)
            with listening(app, lambda sender, **kwargs: seen.append(sender)):
                builder.build(one, FAR)
        assert seen == ["note"]


def anonymous(message: Message) -> str:
    """What is stored, without what is another in each message."""
    text = message.payload.decode().replace(message.task_id, "id")
    properties = json.loads(text)["properties"]
    for name in ("delivery_tag", "expiration"):
        text = text.replace(str(properties.get(name)), name)
    return text


@contextmanager
def listening(app: Celery, receive: Callable[..., None]) -> Iterator[None]:
    """Let a function hear `before_task_publish` while the block lasts."""
    signals.before_task_publish.connect(receive, weak=False)
    # Celery 5.6 keeps the list of those who listen, which another test may have made it replace.
    app.amqp.__dict__.pop("send_task_message", None)
    try:
        yield
    finally:
        signals.before_task_publish.disconnect(receive)


def test_signals_of_celery_are_sent(send: Callable[..., Message], app: Celery) -> None:
    seen = []

    def receive(sender: str, headers: dict[str, Any], **kwargs: Any) -> None:
        headers["traced"] = True
        seen.append(sender)

    with listening(app, receive):
        assert headers(send())["traced"] is True
    assert seen == ["note"]


def test_what_a_signal_publishes_besides_is_sent(send: Callable[..., Message], app: Celery) -> None:
    def receive(sender: str, **kwargs: Any) -> None:
        if sender == "note":
            app.send_task("other", queue="besides")

    with listening(app, receive):
        send()
    with app.connection_for_write() as connection:
        assert connection.default_channel.plain_client.llen("besides") == 1


def test_several_queues_are_refused(broker_url: str, ledger_url: str) -> None:
    both = Exchange("both", type="topic")
    queues = [Queue("one", both, routing_key="note.#"), Queue("two", both, routing_key="note.#"), Broadcast("all")]
    with publisher(broker_url, ledger_url, task_queues=queues) as app, app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
        producer = app.amqp.Producer(connection, auto_declare=False)
        for options in ({"exchange": "both", "routing_key": "note.x"}, {"queue": "all"}):
            one = Definition.of("e", {"task": "note", "schedule": 60, "options": options}, app)
            with pytest.raises(CannotSend, match="several queues"):
                Builder(app, producer).build(one, FAR)


def test_eager_apps_are_refused(broker_url: str, ledger_url: str) -> None:
    with publisher(broker_url, ledger_url, task_always_eager=True) as app:
        one = Definition.of("e", {"task": "note", "schedule": 60}, app)
        with pytest.raises(CannotSend, match="task_always_eager"):
            Builder(app, None).build(one, FAR)

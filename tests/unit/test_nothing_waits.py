"""Apps that are set up for tests, with task_always_eager or memory://: nothing waits, and no server is asked."""

from __future__ import annotations

import io
import socket
from typing import Any

import pytest
from celery import Celery

from celery_delayq import ConfigurationError, DelayQ, Unique

APPS = {
    "eager": {"broker": "delayq://nowhere.invalid:1/0", "task_always_eager": True},
    "eager, and another broker": {"broker": "amqp://nowhere.invalid:1//", "task_always_eager": True},
    "memory": {"broker": "memory://"},
    "memory by its transport": {"broker": "", "broker_transport": "memory"},
}


def make(broker: str, **conf: Any) -> DelayQ:
    app = Celery("shop", broker=broker, backend="cache+memory://", set_as_current=False)
    app.conf.update(conf)

    @app.task(name="note", shared=False)
    def note(value: Any = None) -> Any:
        return value

    return DelayQ(app)


@pytest.fixture(params=APPS.values(), ids=list(APPS))
def delayq(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DelayQ:
    def refuse(*args: Any) -> None:
        raise AssertionError("a socket was connected")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return make(**request.param)


class TestReading:
    def test_no_task_is_found(self, delayq: DelayQ) -> None:
        result = delayq.app.tasks["note"].apply_async((1,), countdown=600)
        assert delayq.get(result) is None
        assert delayq.get([result.id, "b"]) == {result.id: None, "b": None}
        assert delayq.get([result.id, "b"], ready=True) == {result.id: None, "b": None}
        assert delayq.waiting("a key") is None
        assert list(delayq.iter_scheduled()) == []
        for page in (delayq.scheduled(queue="celery", text="a"), delayq.scheduled("celery", state="ready")):
            assert (list(page), page.cursor) == ([], None)

    def test_nothing_is_counted(self, delayq: DelayQ) -> None:
        counts = delayq.counts(buckets=3)
        assert (counts.queues, [bucket.count for bucket in counts.histogram]) == ((), [0, 0, 0])
        assert (counts.next_due, counts.later) == (None, 0)
        histogram = delayq.histogram(1_700_000_000, 60, 2)
        assert (histogram.before, histogram.after, len(histogram.buckets)) == (0, 0, 2)
        assert delayq.consumers().consumers == ()
        assert sum(point.transferred for point in delayq.history(queue="celery").points) == 0

    def test_only_the_settings_are_checked(self, delayq: DelayQ) -> None:
        assert {finding.check for finding in delayq.check()} == {"settings"}

    def test_an_export_is_empty(self, delayq: DelayQ) -> None:
        file = io.StringIO()
        assert delayq.export(file) == 0
        assert file.getvalue().count("\n") == 2


class TestChanging:
    def test_nothing_is_changed(self, delayq: DelayQ) -> None:
        result = delayq.app.tasks["note"].apply_async((1,), countdown=600)
        assert delayq.cancel(result) is False
        assert delayq.cancel(["a", "b"]) == delayq.cancel(["a", "b"], ready=True) == {"a": False, "b": False}
        assert delayq.cancel_all(everything=True, ready=True) == 0
        assert delayq.reschedule("a", countdown=60) is False
        assert delayq.run_now("a") is False
        assert delayq.forget("a key") is False
        assert delayq.cancel_all(everything=True) == 0
        assert delayq.reschedule_all(countdown=60, everything=True) == 0
        assert delayq.run_now_all(queue="celery", dry_run=True) == 0
        chunk = delayq.change_some("run_now", everything=True)
        assert (chunk.changed, chunk.cursor) == (0, None)
        assert delayq.release().released == 0

    def test_wrong_arguments_are_errors_as_ever(self, delayq: DelayQ) -> None:
        with pytest.raises(TypeError, match="give either countdown or eta"):
            delayq.reschedule("a")
        with pytest.raises(TypeError, match="its id or its result"):
            delayq.cancel(42)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="everything=True"):
            delayq.cancel_all()
        with pytest.raises(TypeError, match="give either countdown or eta"):
            delayq.reschedule_all(everything=True)
        with pytest.raises(ValueError, match="limit must be"):
            delayq.scheduled(limit=0)


class TestSending:
    def test_many_tasks_are_sent_one_by_one(self, delayq: DelayQ) -> None:
        note = delayq.app.tasks["note"]
        assert len(delayq.apply_async_many([note.s(1), note.s(2).set(countdown=60)])) == 2
        assert delayq.apply_async_many([note.s(1)], results=False) == 1

    @pytest.mark.parametrize("on_conflict", ["ignore", "replace", "extend", "raise"])
    def test_every_unique_task_is_new(self, delayq: DelayQ, on_conflict: Any) -> None:
        note = delayq.app.tasks["note"]
        for _ in range(2):
            result = note.apply_async((1,), countdown=60, unique=Unique(key="a", on_conflict=on_conflict))
            assert delayq.was_new(result)
            assert result.was_new
            assert delayq.was_new(note.apply_async((1,), unique=Unique(key="a", period=60)))


class TestErrors:
    def test_memory_stores_no_periodic_task_and_no_import(self) -> None:
        delayq = make("memory://")
        for call in (lambda: delayq.schedule.add("a", "note", 60), lambda: delayq.import_(io.StringIO("{}\n"))):
            with pytest.raises(ConfigurationError, match=r"memory://.* celery_delayq.testing start a Redis for tests"):
                call()

    @pytest.mark.parametrize("broker", ["redis://nowhere.invalid:1/0", "amqp://nowhere.invalid:1//"])
    def test_a_wrong_broker_is_an_error_as_ever(self, broker: str) -> None:
        delayq = make(broker)
        for call in (
            lambda: delayq.get("a"),
            lambda: delayq.cancel("a"),
            lambda: delayq.counts(),
            lambda: delayq.scheduled(),
            lambda: delayq.apply_async_many([]),
            lambda: delayq.schedule.get("a"),
        ):
            with pytest.raises(ConfigurationError, match="start the URL with delayq://"):
                call()

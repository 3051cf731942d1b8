"""advance and run_due."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chain, signals

from celery_delayq import KeyHeld, Throttle, Unique
from celery_delayq.testing import DelayQTester, tester


@pytest.fixture
def note(app: Celery) -> Any:
    return app.tasks["note"]


class TestWhatRuns:
    def test_what_falls_due_in_due_order(self, delayq: DelayQTester, note: Any, ran: list[Any]) -> None:
        for countdown in (3601, 3600, 60, 1800):
            note.apply_async((countdown,), countdown=countdown, queue="mail" if countdown == 60 else None)
        runs = delayq.advance(hours=1)
        assert ran == [run.result for run in runs] == [60, 1800, 3600]
        assert {(run.name, run.state, run.error) for run in runs} == {("note", "SUCCESS", None)}
        delayq.assert_scheduled(note, countdown=1)

    def test_tasks_due_at_one_time_run_in_the_order_in_which_they_were_sent(
        self, delayq: DelayQTester, note: Any, ran: list[Any]
    ) -> None:
        eta = datetime.now(timezone.utc) + timedelta(hours=2)
        for number in range(60):
            note.apply_async((number,), eta=eta)
        delayq.advance(hours=1)
        delayq.advance(hours=1)
        assert ran == list(range(60))

    def test_time_is_given_in_parts_or_as_a_timedelta(self, delayq: DelayQTester, note: Any, ran: list[Any]) -> None:
        note.apply_async((1,), countdown=2 * 86400 + 3 * 3600 + 4 * 60 + 5)
        delayq.advance(timedelta(days=1), hours=3, minutes=4, seconds=4)
        delayq.advance(days=1)
        assert not ran
        delayq.advance(seconds=1)
        assert ran == [1]

    def test_time_does_not_go_back(self, delayq: DelayQTester) -> None:
        with pytest.raises(ValueError, match="time does not go back"):
            delayq.advance(seconds=-1)

    @pytest.mark.parametrize("by", [60, 1.5, "1m", None])
    def test_a_bare_number_is_refused_with_what_to_write(self, delayq: DelayQTester, by: Any) -> None:
        message = f"advance() needs a timedelta, or names as in advance(minutes=5), advance(seconds=60): not {by!r}"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            delayq.advance(by)

    def test_run_due_runs_what_is_ready_and_nothing_else(
        self, delayq: DelayQTester, app: Celery, note: Any, ran: list[Any]
    ) -> None:
        app.tasks["send"].delay("now")
        app.tasks["send"].delay("later", 60)
        note.apply_async(("much later",), countdown=61)
        delayq.run_now(note.apply_async(("after all",), countdown=600))
        delayq.run_due()
        assert ran == ["send", "send", "after all", "now"]
        assert len(delayq.scheduled()) == 2

    def test_priorities_hold(self, delayq: DelayQTester, note: Any, ran: list[Any]) -> None:
        for priority in (6, 0, 3):
            note.apply_async((priority,), priority=priority)
        delayq.run_due()
        assert ran == [0, 3, 6]

    def test_a_cancelled_task_does_not_run(self, delayq: DelayQTester, app: Celery, note: Any, ran: list[Any]) -> None:
        assert delayq.cancel(note.apply_async((1,), countdown=60))
        app.control.revoke(note.apply_async((2,), countdown=60).id)
        assert not delayq.advance(days=1)
        assert not ran

    def test_a_task_that_sends_itself_again_and_again_is_an_error(
        self, delayq: DelayQTester, app: Celery, monkeypatch: pytest.MonkeyPatch, ran: list[Any]
    ) -> None:
        monkeypatch.setattr(tester, "MOST_RUNS", 20)
        app.tasks["every"].delay(0)
        with pytest.raises(RuntimeError, match=r"20 tasks ran, and more are due.*every: does it send itself again"):
            delayq.advance(hours=1)
        assert len(ran) == 20


class TestVirtualTime:
    def test_what_a_task_sends_is_relative_to_its_own_due_time(
        self, delayq: DelayQTester, app: Celery, ran: list[Any]
    ) -> None:
        app.tasks["every"].apply_async((3600,), countdown=3600)
        begun = time.monotonic()
        assert len(delayq.advance(days=1)) == 24
        delayq.assert_scheduled("every", countdown=3600)
        assert len(delayq.advance(minutes=59)) == 0
        assert len(delayq.advance(minutes=1)) == 1
        assert time.monotonic() < begun + 60

    def test_retries_run_at_their_time(self, delayq: DelayQTester, app: Celery, ran: list[Any]) -> None:
        app.tasks["try_again"].apply_async((600,), countdown=60, task_id="a")
        (run,) = delayq.advance(minutes=1)
        assert (run.state, run.error) == ("RETRY", None)
        assert delayq.assert_scheduled("try_again", countdown=600).retries == 1
        assert [run.state for run in delayq.advance(minutes=10)] == ["RETRY"]
        with pytest.raises(Exception, match="Can't retry try_again"):
            delayq.advance(minutes=10)
        assert ran == [0, 1, 2]
        assert app.AsyncResult("a").state == "FAILURE"

    def test_a_task_sees_its_new_eta_and_no_clock_is_set(self, delayq: DelayQTester, app: Celery) -> None:
        seen = []

        @app.task(bind=True, name="look", lazy=False, shared=False)
        def look(self: Any) -> None:
            seen.append((datetime.fromisoformat(self.request.eta), datetime.now(timezone.utc)))

        look.apply_async(countdown=86400)
        before = datetime.now(timezone.utc)
        delayq.advance(days=1)
        ((eta, now),) = seen
        assert before - timedelta(seconds=10) < eta <= now
        assert now < before + timedelta(minutes=1)

    def test_a_task_expires_in_virtual_time(self, delayq: DelayQTester, note: Any, ran: list[Any]) -> None:
        note.apply_async(("kept",), countdown=3600, expires=7200)
        note.apply_async(("expired",), countdown=3600, expires=1800, task_id="old")
        assert [run.state for run in delayq.advance(hours=1)] == ["SUCCESS", "REVOKED"]
        assert ran == ["kept"]
        note.apply_async(("the same id",), task_id="old")
        delayq.run_due()
        assert ran == ["kept", "the same id"]

    def test_turns_of_a_throttled_key_come_in_virtual_time(
        self, delayq: DelayQTester, note: Any, ran: list[Any]
    ) -> None:
        throttle = Throttle("1/m", key="partner")
        for number in range(3):
            note.apply_async((number,), throttle=throttle)
        delayq.advance(seconds=1)
        assert ran == [0]
        delayq.advance(minutes=2)
        assert ran == [0, 1, 2]
        note.apply_async((3,), throttle=throttle)
        delayq.assert_scheduled(note, args=(3,), countdown=60)
        delayq.advance(hours=1)
        note.apply_async((4,), throttle=throttle)
        delayq.advance(seconds=1)
        assert ran == [0, 1, 2, 3, 4]

    def test_a_clock_that_a_test_has_set_counts(
        self, delayq: DelayQTester, note: Any, ran: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for countdown in (200, 100, 400):
            note.apply_async((countdown,), countdown=countdown)
        later = time.time() + 300
        monkeypatch.setattr(time, "time", lambda: later)
        delayq.run_due()
        assert ran == [100, 200]
        delayq.advance(seconds=100)
        assert ran == [100, 200, 400]


class TestRunning:
    def test_results_callbacks_chains_and_signals_are_as_with_a_worker(
        self, delayq: DelayQTester, app: Celery, note: Any, ran: list[Any]
    ) -> None:
        heard = []

        def hear(sender: Any, task_id: str, **others: Any) -> None:
            heard.append(task_id)

        signals.task_prerun.connect(hear)
        try:
            result = note.apply_async((1,), countdown=60, link=note.s())
            last = chain(note.si("first").set(countdown=60), note.si("second").set(countdown=60)).apply_async()
            assert (result.state, last.state) == ("PENDING", "PENDING")
            delayq.advance(minutes=1)
            assert (result.get(timeout=10), last.state) == (1, "PENDING")
            delayq.advance(minutes=1)
            assert last.get(timeout=10) == "second"
        finally:
            signals.task_prerun.disconnect(hear)
        assert ran == [1, 1, "first", "second"]
        assert len(heard) == 4

    def test_an_error_is_raised_and_time_stops(
        self, delayq: DelayQTester, app: Celery, note: Any, ran: list[Any]
    ) -> None:
        result = app.tasks["fail"].apply_async(countdown=60)
        note.apply_async((1,), countdown=90)
        with pytest.raises(ZeroDivisionError, match="as wanted") as caught:
            delayq.advance(hours=1)
        assert caught.traceback[-1].name == "fail"
        assert result.state == "FAILURE"
        delayq.assert_scheduled(note, countdown=30)
        delayq.advance(seconds=31)
        assert ran == ["fail", 1]

    @pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
    def test_a_result_that_cannot_be_stored_is_an_error(
        self, delayq: DelayQTester, app: Celery, note: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: Any, **kwargs: Any) -> None:
            raise OSError("no room")

        note.apply_async((1,), countdown=60)
        monkeypatch.setattr(app.backend, "mark_as_done", fail)
        with pytest.raises(OSError, match="no room"):
            delayq.advance(minutes=1)

    def test_an_error_is_kept_instead(self, delayq: DelayQTester, app: Celery, note: Any, ran: list[Any]) -> None:
        app.tasks["fail"].apply_async(countdown=60)
        note.apply_async((1,), countdown=90)
        failed, good = delayq.advance(hours=1, propagate=False)
        assert (failed.state, type(failed.error), good.state) == ("FAILURE", ZeroDivisionError, "SUCCESS")
        assert ran == ["fail", 1]

    @pytest.mark.parametrize("for_", ["waiting", "until_start", "until_done"])
    def test_a_unique_key_is_given_up_when_its_task_is_done(
        self, delayq: DelayQTester, app: Celery, note: Any, for_: Any
    ) -> None:
        unique = Unique(key="mine", for_=for_, on_conflict="raise")
        held = []

        @app.task(name="try_key", lazy=False, shared=False)
        def try_key() -> None:
            try:
                note.apply_async(countdown=60, unique=unique)
            except KeyHeld:
                held.append(True)

        try_key.apply_async(countdown=60, unique=unique)
        with pytest.raises(KeyHeld):
            note.apply_async(countdown=60, unique=unique)
        delayq.advance(hours=1)
        assert bool(held) == (for_ == "until_done")
        note.apply_async(countdown=60, unique=unique)

    def test_a_task_that_the_app_lacks_is_an_error(self, delayq: DelayQTester, app: Celery) -> None:
        app.send_task("nobody.knows", countdown=60)
        with pytest.raises(LookupError, match=r"no task 'nobody.knows': import the module that defines it"):
            delayq.advance(minutes=1)

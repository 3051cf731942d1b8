"""A task is named by itself, its name, or a signature; a misspelt name is an error, as that of a queue is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.signals import import_modules

from celery_delayq import DelayedQueue, DelayQ, Unique, UnknownTask
from tests.state import nothing_changes

pytestmark = pytest.mark.on_cluster(always=True)

#: Calls for one task, and how many they find.
CALLS: dict[str, Callable[[DelayQ, Any], int]] = {
    "scheduled": lambda delayq, task: len(delayq.scheduled(task=task)),
    "iter_scheduled": lambda delayq, task: len(list(delayq.iter_scheduled(task=task))),
    "reschedule_all": lambda delayq, task: delayq.reschedule_all(task=task, countdown=600),
    "cancel_all": lambda delayq, task: delayq.cancel_all(task=task),
    "run_now_all": lambda delayq, task: delayq.run_now_all(task=task),
    "change_some": lambda delayq, task: delayq.change_some("cancel", task=task).changed,
}

WAYS: dict[str, Callable[[Celery], Any]] = {
    "a name": lambda app: "note",
    "a task": lambda app: app.tasks["note"],
    "a signature": lambda app: app.tasks["note"].s(),
    "a signature by name": lambda app: app.signature("note"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_a_task_is_named_in_any_way(app: Celery, waiting: DelayedQueue, call: str, way: str) -> None:
    app.tasks["note"].apply_async((1,), countdown=60)
    app.tasks["add"].apply_async((1, 2), countdown=60)
    assert CALLS[call](app.delayq, WAYS[way](app)) == 1


@pytest.mark.parametrize("call", CALLS)
class TestWrongNames:
    def test_a_misspelt_one_is_an_error_with_a_hint(self, app: Celery, waiting: DelayedQueue, call: str) -> None:
        app.tasks["note"].apply_async((1,), countdown=60)
        with (
            nothing_changes(waiting.client),
            pytest.raises(UnknownTask, match=r"unknown task 'ntoe': did you mean 'note'\?") as caught,
        ):
            CALLS[call](app.delayq, "ntoe")
        assert caught.value.near == ("note",)

    def test_one_that_waits_is_known(self, app: Celery, waiting: DelayedQueue, call: str) -> None:
        """Another program sent it."""
        app.send_task("ntoe", countdown=60)
        assert CALLS[call](app.delayq, "ntoe") == 1

    @pytest.mark.parametrize("task", ["billing.charge", "note", "add"])
    def test_others_are_no_error(self, app: Celery, waiting: DelayedQueue, call: str, task: str) -> None:
        """Those of other programs, of which none waits now; and those of the app."""
        assert CALLS[call](app.delayq, task) == 0

    def test_a_signature_is_not_checked(self, app: Celery, waiting: DelayedQueue, call: str) -> None:
        assert CALLS[call](app.delayq, app.signature("ntoe")) == 0

    def test_arguments_are_refused(self, app: Celery, waiting: DelayedQueue, call: str) -> None:
        """They would not be looked at."""
        app.tasks["note"].apply_async((1,), countdown=60)
        for signature in (app.tasks["note"].s(2), app.tasks["note"].s(value=2)):
            with nothing_changes(waiting.client), pytest.raises(ValueError, match="task stands for all calls of note"):
                CALLS[call](app.delayq, signature)

    @pytest.mark.parametrize("task", [7, b"note", ["note"], {"name": "note"}, len])
    def test_other_objects_are_refused(self, app: Celery, waiting: DelayedQueue, call: str, task: Any) -> None:
        with nothing_changes(waiting.client), pytest.raises(TypeError, match="task must be a task, its name or a sig"):
            CALLS[call](app.delayq, task)


def nothing() -> None:
    """A task."""


def broken(**kwargs: Any) -> None:
    raise ImportError("no such module")


class TestHints:
    """Names of a module begin in the same way: what counts is how they end."""

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("shop.tasks.pakc", ["shop.tasks.pack"]),
            ("pack", ["shop.tasks.pack"]),
            ("shop.pack", ["shop.tasks.pack"]),
            ("tasks.pack", ["shop.tasks.pack"]),
            ("shop.tasks.Pack", ["shop.tasks.pack"]),
            ("shop.tasks.remnd", ["shop.tasks.remind"]),
            ("shop.tasks.report", None),
            ("shop.tasks.p", None),
            ("billing.charge", None),
            ("celery.chor", None),
            ("", None),
        ],
    )
    def test_are_for_what_was_probably_meant(self, broker_url: str, given: str, meant: list[str] | None) -> None:
        app = Celery("shop", broker=broker_url, set_as_current=False)
        for name in ("pack", "remind", "ship"):
            app.task(name=f"shop.tasks.{name}", shared=False, lazy=False)(nothing)
        delayq = DelayQ(app)
        if meant is None:
            assert len(delayq.scheduled(task=given)) == 0
            return
        with pytest.raises(UnknownTask) as caught:
            delayq.scheduled(task=given)
        assert list(caught.value.near) == meant

    def test_tasks_are_imported_before_one_is_called_unknown(self, broker_url: str) -> None:
        """An app in a web server may not have imported all: `autodiscover_tasks` leaves it to workers."""
        app = Celery("shop", broker=broker_url, set_as_current=False)
        app.task(name="shop.tasks.pack", shared=False, lazy=False)(nothing)
        delayq = DelayQ(app)

        def load(**kwargs: Any) -> None:
            app.task(name="shop.tasks.packs", shared=False, lazy=False)(nothing)

        import_modules.connect(load, sender=app, weak=False)
        assert len(delayq.scheduled(task="shop.tasks.packs")) == 0
        import_modules.connect(broken, sender=app, weak=False)
        with pytest.raises(UnknownTask, match=r"did you mean 'shop\.tasks\.pack' or 'shop\.tasks\.packs'"):
            delayq.scheduled(task="shop.tasks.packz")

    def test_an_app_without_tasks_knows_none(self, broker_url: str) -> None:
        app = Celery("producer", broker=broker_url, set_as_current=False)
        assert len(DelayQ(app).scheduled(task="ntoe")) == 0


class TestUniqueKeys:
    def test_a_task_without_arguments(self, app: Celery, waiting: DelayedQueue) -> None:
        unique = Unique()
        app.tasks["note"].unique = unique
        try:
            result = app.tasks["note"].apply_async(countdown=60)
            assert app.delayq.waiting(app.tasks["note"]).id == app.delayq.waiting(app.tasks["note"].s()).id == result.id
            assert app.delayq.forget(app.tasks["note"])
            assert app.delayq.waiting(app.tasks["note"]) is None
        finally:
            del app.tasks["note"].unique

    def test_a_misspelt_one(self, app: Celery, waiting: DelayedQueue) -> None:
        with pytest.raises(UnknownTask, match="did you mean 'note'"):
            app.delayq.waiting(app.signature("ntoe"))
        with pytest.raises(ValueError, match=r"task billing\.charge is not unique"):
            app.delayq.forget(app.signature("billing.charge"))


class TestPeriodic:
    def test_an_entry_for_a_signature_has_its_arguments(self, app: Celery, waiting: DelayedQueue) -> None:
        note = app.tasks["note"]
        schedule = app.delayq.schedule
        added = schedule.add("a", note.s(1).set(queue="other"), 60)
        assert (added.task, list(added.args), added.options) == ("note", [1], {"queue": "other"})
        added = schedule.add("b", note.s(value=1), 60, options={"priority": 3})
        assert (list(added.args), added.kwargs, added.options) == ([], {"value": 1}, {"priority": 3})
        assert list(schedule.add("c", note.s(1), 60, args=[2]).args) == [2]
        assert list(schedule.update("a", task=app.tasks["add"].s(3, 4)).args) == [3, 4]
        kept = schedule.update("a", task=note)
        assert (kept.task, list(kept.args)) == ("note", [3, 4])

    def test_a_misspelt_task_is_not_added(self, app: Celery, waiting: DelayedQueue) -> None:
        with pytest.raises(UnknownTask, match="did you mean 'note'"):
            app.delayq.schedule.add("a", "ntoe", 60)
        assert "a" not in app.delayq.schedule
        assert not app.delayq.schedule.add("a", app.signature("ntoe"), 60).is_registered
        with pytest.raises(UnknownTask, match="did you mean 'add'"):
            app.delayq.schedule.update("a", task="addd")

"""assert_scheduled, assert_not_scheduled, and what they say."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from celery import Celery

from celery_delayq.testing import DelayQTester

ID = UUID(int=7)


@pytest.fixture
def note(app: Celery) -> Any:
    return app.tasks["note"]


class TestScheduled:
    def test_a_task_is_found_by_each_of_its_properties(self, delayq: DelayQTester, note: Any) -> None:
        eta = datetime.now(timezone.utc) + timedelta(hours=1)
        note.apply_async((1,), {"colour": "red"}, eta=eta, queue="mail", task_id="a")
        for options in (
            {},
            {"args": (1,)},
            {"args": [1]},
            {"kwargs": {"colour": "red"}},
            {"countdown": 3600},
            {"countdown": 3600.0, "tolerance": 30},
            {"due": eta},
            {"due": eta.timestamp()},
            {"queue": "mail"},
            {"args": (1,), "kwargs": {"colour": "red"}, "due": eta, "queue": "mail", "tolerance": 0.001},
        ):
            assert delayq.assert_scheduled(note, **options).id == "a"
            assert delayq.assert_scheduled("note", **options).id == "a"
            with pytest.raises(AssertionError, match=r"a task waits that should not: note args=\(1,\)"):
                delayq.assert_not_scheduled(note, **options)

    @pytest.mark.parametrize(
        ("options", "differs"),
        [
            ({"args": ()}, "args"),
            ({"args": ("1",)}, "args"),
            ({"kwargs": {}}, "kwargs"),
            ({"countdown": 3500}, "due"),
            ({"due": 0}, "due"),
            ({"queue": "celery"}, "queue"),
            ({"args": (2,), "queue": "celery"}, "args, queue"),
        ],
    )
    def test_a_task_that_differs_is_not_found(
        self, delayq: DelayQTester, note: Any, options: Any, differs: str
    ) -> None:
        note.apply_async((1,), {"colour": "red"}, countdown=3600, queue="mail")
        delayq.assert_not_scheduled(note, **options)
        with pytest.raises(AssertionError, match=rf"\(not the same: {differs}\)"):
            delayq.assert_scheduled(note, **options)

    @pytest.mark.parametrize(
        "value", [(1, (2, 3)), {"a": ID}, datetime(2030, 1, 1, tzinfo=timezone.utc), "é", None], ids=repr
    )
    def test_arguments_are_those_that_were_given_to_the_task(self, delayq: DelayQTester, note: Any, value: Any) -> None:
        note.apply_async((value,), {"more": value}, countdown=60)
        delayq.assert_scheduled(note, args=(value,), kwargs={"more": value})
        delayq.assert_scheduled(note, args=(mock.ANY,), kwargs={"more": mock.ANY})
        delayq.assert_not_scheduled(note, args=(mock.ANY, mock.ANY))

    def test_of_several_the_first_one_is_returned(self, delayq: DelayQTester, note: Any) -> None:
        for countdown in (300, 100, 200):
            note.apply_async((1,), countdown=countdown, task_id=f"in {countdown}")
        assert delayq.assert_scheduled(note).id == "in 100"
        assert delayq.assert_scheduled(note, countdown=200).id == "in 200"


class TestWhatIsSaid:
    def test_nothing_waits(self, delayq: DelayQTester, note: Any) -> None:
        with pytest.raises(AssertionError) as caught:
            delayq.assert_scheduled(note, args=(1,))
        assert str(caught.value) == "no waiting task matches note args=(1,)\nNo task waits."

    def test_the_most_similar_tasks_come_first(self, delayq: DelayQTester, note: Any, app: Celery) -> None:
        app.tasks["send"].apply_async((1,), countdown=30)
        note.apply_async((2,), countdown=60, queue="mail")
        note.apply_async((2,), countdown=90, task_id="near")
        with pytest.raises(AssertionError) as caught:
            delayq.assert_scheduled(note, args=(1,), queue="celery")
        first, _, *waiting = str(caught.value).splitlines()
        assert first == "no waiting task matches note args=(1,) queue='celery'"
        assert [line.split()[0] for line in waiting] == ["note", "note", "send"]
        assert waiting[0].startswith("  note args=(2,) kwargs={} due=")
        assert waiting[0].endswith(" (in 1m 29s) queue='celery' id=near  (not the same: args)")

    def test_a_task_that_was_sent_without_a_countdown_is_shown(self, delayq: DelayQTester, note: Any) -> None:
        note.apply_async((1,), task_id="now")
        with pytest.raises(AssertionError) as caught:
            delayq.assert_scheduled(note, args=(1,), countdown=60)
        assert str(caught.value).splitlines()[1:] == [
            "No task waits.",
            "These tasks do not wait, they are ready for a worker:",
            "  note args=(1,) kwargs={} queue='celery' id=now",
        ]

    def test_not_more_than_twenty_are_shown(self, delayq: DelayQTester, note: Any) -> None:
        delayq.apply_async_many(note.s(number).set(countdown=60) for number in range(23))
        with pytest.raises(AssertionError) as caught:
            delayq.assert_scheduled("other")
        assert len(str(caught.value).splitlines()) == 23
        assert str(caught.value).endswith("\n  and 3 more")

"""Waiting: what the list says when nothing is on it, and of tasks that are gone."""

from __future__ import annotations

from functools import partial

import pytest
from celery import Celery

from celery_delayq.inspector import pages
from tests.web import direct
from tests.web.direct import User

app, user = direct.app, direct.user


@pytest.fixture
def reminders(app: Celery) -> None:
    """Three tasks wait."""
    for number in range(3):
        app.tasks["shop.orders.remind"].apply_async((number,), countdown=3600)


@pytest.mark.usefixtures("reminders")
class TestNothingToShow:
    def test_says_how_far_it_looked(self, user: User) -> None:
        text = user.get("/waiting", {"text": "never heard of"}).page.text
        assert "Looked at 3 of 3 tasks." in text
        assert "No waiting tasks match." in text

    def test_there_may_be_more_further_on(self, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pages, "page", partial(pages.page, most_examined=2))
        answer = user.get("/waiting", {"text": "never heard of"})
        assert "None of these match. There may be more on the next pages." in answer.page.text
        assert "Next page" in answer.page.texts_of("a")

    def test_a_time_that_cannot_be_read(self, user: User) -> None:
        answer = user.get("/waiting", {"due_before": "tomorrow"})
        assert answer.status == 400
        assert "Cannot read 'tomorrow' as a time" in answer.page.text
        assert "wait." not in answer.page.text
        assert "No tasks are waiting." not in answer.page.text
        assert "Cancel …" not in answer.page.texts_of("button")
        assert "Clear" in answer.page.texts_of("a")


def test_a_task_that_somebody_else_cancelled(app: Celery, user: User) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    assert "1 task cancelled." in user.act("/waiting", "cancel", id="a").page.text
    again = user.act("/waiting", "cancel", id="a").page
    assert "0 tasks cancelled. 1 was no longer waiting." in again.text
    assert "no longer waiting" in again.texts_of("span")

"""The overview: what it shows of a queue."""

from __future__ import annotations

from celery import Celery

from tests.web import direct
from tests.web.direct import User

app, client, user = direct.app, direct.client, direct.user


def test_a_queue_is_paused_and_resumed(app: Celery, user: User) -> None:
    shown = user.get("/")
    assert "celery paused" not in shown.page.text
    paused = user.submit(shown, "queue.pause")
    assert "Paused." in paused.page.text
    assert "celery paused" in paused.page.text
    assert app.delayq.paused() == ["celery"]
    resumed = user.submit(user.get("/"), "queue.resume")
    assert "Resumed." in resumed.page.text
    assert app.delayq.paused() == []


def test_an_unknown_queue_is_refused(app: Celery, user: User) -> None:
    answer = user.act("/", "queue.pause", queue="nowhere")
    assert (answer.status, app.delayq.paused()) == (404, [])

"""The overview: what it shows of a queue."""

from __future__ import annotations

from celery import Celery

from tests.web import direct
from tests.web.direct import User

app, client, user = direct.app, direct.client, direct.user


def test_a_paused_queue_has_a_mark(app: Celery, user: User) -> None:
    assert "paused" not in user.get("/").page.text
    app.delayq.pause("celery")
    assert "celery paused" in user.get("/").page.text
    app.delayq.resume("celery")
    assert "paused" not in user.get("/").page.text

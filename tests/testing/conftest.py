"""An app whose broker leads nowhere, until a test gives it a private one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import DelayQTester, private_broker
from celery_delayq.testing.private_redis import PrivateRedis


@pytest.fixture
def ran() -> list[Any]:
    """What the tasks of `app` did."""
    return []


@pytest.fixture
def app(ran: list[Any]) -> Iterator[Celery]:
    """An app with tasks."""
    app = Celery("shop", broker="delayq://nowhere.invalid:1/0", backend="redis://nowhere.invalid:1/0")
    DelayQ(app)

    def task(**options: Any) -> Any:
        return app.task(bind=True, lazy=False, shared=False, **options)

    @task(name="note")
    def note(self: Any, value: Any = None, **others: Any) -> Any:
        ran.append(value)
        return value

    @task(name="fail")
    def fail(self: Any) -> None:
        ran.append("fail")
        raise ZeroDivisionError("as wanted")

    @task(name="try_again", max_retries=2)
    def try_again(self: Any, countdown: float) -> None:
        ran.append(self.request.retries)
        raise self.retry(countdown=countdown)

    @task(name="send")
    def send(self: Any, value: Any, countdown: float | None = None) -> None:
        ran.append("send")
        note.apply_async((value,), countdown=countdown)

    @task(name="every")
    def every(self: Any, countdown: float) -> None:
        ran.append("every")
        self.apply_async((countdown,), countdown=countdown)

    yield app
    app.close()


@pytest.fixture
def delayq(app: Celery, redis_server: PrivateRedis) -> Iterator[DelayQTester]:
    """As the fixture of the plugin."""
    with private_broker(app, redis_server):
        yield DelayQTester(app)

"""Fixtures of pytest: `delayq`, `delayq_app` and `delayq_redis`.

pytest loads this module in every run, by its entry point, so it imports what it needs only within the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_delayq.testing.private_redis import PrivateRedis
    from celery_delayq.testing.tester import DelayQTester

_WHICH_APP = "the Celery app whose delayed tasks are tested, as for `celery -A`: shop:app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let people name their app."""
    parser.addini("delayq_app", _WHICH_APP)
    parser.getgroup("delayq").addoption("--delayq-app", metavar="APP", help=_WHICH_APP)


@pytest.fixture(scope="session")
def delayq_redis() -> Iterator[PrivateRedis]:
    """A Redis server for this run's tests alone; each process of pytest-xdist has its own.

    Raises:
        ServerNotFound: this machine has none; the message says how to get one.
    """
    from celery_delayq.testing.private_redis import PrivateRedis

    with PrivateRedis() as server:
        yield server


@pytest.fixture
def delayq_app(request: pytest.FixtureRequest, delayq_redis: PrivateRedis) -> Iterator[Any]:
    """The Celery app, with `delayq_redis` as its broker, which is empty at first.

    The option `delayq_app` of pytest's configuration names the app, or `--delayq-app`. Or write a fixture of this name
    that returns your app; then `delayq` gives it that broker.

    Raises:
        pytest.UsageError: nobody has named the app, or there is none of that name.
    """
    from celery.app.utils import find_app

    from celery_delayq.testing.broker import private_broker

    given = request.config.getoption("--delayq-app")
    name = given or request.config.getini("delayq_app")
    if not name:
        raise pytest.UsageError(
            "which Celery app? Write delayq_app = shop:app in the configuration of pytest, pass --delayq-app=shop:app, "
            "or write a fixture delayq_app that returns your app"
        )
    try:
        found = find_app(name)
    except (ImportError, AttributeError) as exc:
        where = f"--delayq-app={name}" if given else f"delayq_app = {name} in the configuration of pytest"
        # After an AttributeError, Celery looks for a module of the whole name.
        reason = exc.__context__ if isinstance(exc.__context__, AttributeError) else exc
        raise pytest.UsageError(f"{where} names no Celery app: {type(reason).__name__}: {reason}") from exc
    with private_broker(found, delayq_redis) as app:
        yield app


@pytest.fixture
def delayq(delayq_app: Any, delayq_redis: PrivateRedis) -> Iterator[DelayQTester]:
    """`DelayQ` for tests: with `assert_scheduled`, `advance` and more, on a broker that is empty at first."""
    from celery_delayq.testing.broker import private_broker
    from celery_delayq.testing.tester import DelayQTester

    with private_broker(delayq_app, delayq_redis) as app:
        yield DelayQTester(app)

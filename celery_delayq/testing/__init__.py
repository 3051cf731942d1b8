"""For the test suites of users: a Redis of one's own, fixtures for pytest, and time that moves on at once.

private_redis   a Redis server for as long as a `with` block lasts
broker          points an app at it
tester          DelayQTester: DelayQ with assertions, and with time that a test moves
expectation     what a test expects to wait, and what is said if it does not
clock           moves the time of all that waits
running         runs a message as a worker would, in this process
plugin          the fixtures of pytest

Importing this package imports none of them: pytest loads the plugin in every run, also of those who do not use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_delayq.testing.broker import private_broker
    from celery_delayq.testing.private_redis import PrivateRedis, ServerNotFound
    from celery_delayq.testing.running import TaskRun
    from celery_delayq.testing.tester import DelayQTester

__all__ = ["DelayQTester", "PrivateRedis", "ServerNotFound", "TaskRun", "private_broker"]

#: Which module has a public name.
_MODULES = {
    "DelayQTester": "tester",
    "PrivateRedis": "private_redis",
    "ServerNotFound": "private_redis",
    "TaskRun": "running",
    "private_broker": "broker",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

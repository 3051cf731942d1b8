"""DelayQ: the object through which an app uses this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from celery import Celery
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from celery_delayq.bootsteps import Plan, Transfer
from celery_delayq.config import check_urls
from celery_delayq.delayed_queue import registered
from celery_delayq.errors import ConfigurationError
from celery_delayq.schedule.api import Schedule
from celery_delayq.transport import Transport, register_schemes


class DelayQ:
    """Delayed tasks in Redis for a Celery app.

        app = Celery("shop", broker="delayq://localhost:6379/0")
        delayq = DelayQ(app)

    It registers the `delayq` URL schemes with kombu and a bootstep with the app; it connects to nothing and reads no
    configuration, so it may come before `app.config_from_object`. Making it twice for an app does no harm. It may be
    shared by threads, and used after a fork.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app
        register_schemes()
        app.steps["consumer"].update((Plan, Transfer))

    def cancel(self, task_id: str | AsyncResult) -> bool:
        """Remove a task that waits, for good: it will not run.

        Atomic against the transfer: either this call or the worker gets the task. If the id was scheduled several
        times, all of them are removed. O(log N) for N waiting tasks, and one round trip a queue.

        The result of a cancelled task stays pending, and nobody tells a chord or chain that counts on it. Of a chain,
        the waiting task is the first: `result.parent.id` and so on.

        Args:
            task_id: the id of the task, `result.id`, or the result itself.

        Returns:
            True if it was still waiting. False if it was moved to its queue because it is due, was cancelled before,
            or never was delayed.

        Raises:
            TypeError: neither a task id nor the result of one task; cancel the members of a group one by one.
            kombu.exceptions.OperationalError: the server cannot be reached, or refuses a queue in which the task might
                be. If the connection was lost during the call, the task may be gone or not; calling again makes sure.
            ConfigurationError: the app's broker is not a `delayq://` one.
        """
        if isinstance(task_id, AsyncResult):
            task_id = task_id.id
        if not isinstance(task_id, str):
            raise TypeError(f"cancel() takes a task id or the result of a task, not {task_id!r}")
        with self._channel() as channel:
            try:
                return _cancel(channel, task_id)
            except (*channel.connection.client.connection_errors, ResponseError) as exc:
                raise OperationalError(f"cannot tell whether task {task_id} waits: {exc}") from exc

    @cached_property
    def schedule(self) -> Schedule:
        """The periodic tasks of the app, see `Schedule`."""
        return Schedule(self.app, self._channel)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self.app.connection_or_acquire() as connection:
            check_urls(self.app)
            if not isinstance(connection.transport, Transport):
                raise ConfigurationError(
                    f"the broker of app {self.app.main!r} is {connection.as_uri()}: "
                    "begin the URL with delayq:// instead of redis://"
                )
            connection.ensure_connection(max_retries=1)
            yield connection.default_channel


def _cancel(channel: Any, task_id: str) -> bool:
    """Cancel a task in all queues; one that the server refuses, another app's say, does not shield the others."""
    found, refused = False, None
    for name in registered(channel.plain_client, channel.global_keyprefix):
        try:
            found = channel.delayed_queue(name).cancel(task_id) > 0 or found
        except ResponseError as exc:
            refused = exc
    if refused is not None and not found:
        raise refused
    return found

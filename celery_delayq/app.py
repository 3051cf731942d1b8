"""DelayQ: the object through which an app uses this package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.canvas import Signature
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from celery_delayq import bulk, panel
from celery_delayq.bootsteps import Transfer
from celery_delayq.config import require_transport
from celery_delayq.control import use_control
from celery_delayq.delayed_queue import registered
from celery_delayq.transport import register_schemes


class DelayQ:
    """Delayed tasks in Redis for a Celery app.

        app = Celery("shop", broker="delayq://localhost:6379/0")
        delayq = DelayQ(app)

    It registers the `delayq` URL schemes with kombu, a bootstep and a `control` with the app, and remote control
    commands with Celery; it connects to nothing and reads no configuration, so it may come before
    `app.config_from_object`. Making it twice for an app does no harm. It may be shared by threads, and used after a
    fork.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app
        register_schemes()
        app.steps["consumer"].add(Transfer)
        use_control(app)
        panel.register()

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
        with self.app.connection_or_acquire() as connection:
            channel = self._channel(connection)
            try:
                return _cancel(channel, task_id)
            except (*connection.connection_errors, ResponseError) as exc:
                raise OperationalError(f"cannot tell whether task {task_id} waits: {exc}") from exc

    def apply_async_many(
        self, signatures: Iterable[Signature], *, chunk_size: int = bulk.CHUNK_SIZE
    ) -> list[AsyncResult]:
        """Send many tasks in a few round trips; each as its signature's `apply_async()` does, delayed or not.

            delayq.apply_async_many(remind.s(user).set(countdown=3600) for user in users)

        `after_task_publish` is sent when a task is in a chunk, just before the chunk is sent.

        Args:
            signatures: of single tasks; each call makes a new task id for those that have none. Read as they are sent.
            chunk_size: tasks a round trip; fewer if they are large. What has been sent stays sent.

        Returns:
            The results in order.

        Raises:
            NotAllSent: the first error ends it, and says what was sent, and what was not. Signatures behind it were
                not read. Its cause is that error.
            ConfigurationError: the app's broker is not a `delayq://` one.
            kombu.exceptions.OperationalError: the server cannot be reached; nothing was sent.
        """
        return bulk.apply_async_many(self.app, signatures, chunk_size)

    def _channel(self, connection: Any) -> Any:
        require_transport(self.app, connection)
        connection.ensure_connection(max_retries=1)
        return connection.default_channel


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

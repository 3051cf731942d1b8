"""A publisher: submits tasks at a steady rate, and books what became of each submission."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from celery import Celery
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq import NotReplicated

#: Published at once, so that workers find a backlog; in seconds of the rate.
_BURST_S = 0.1

#: Every so many tasks, one takes long.
_LONG_EVERY, _LONG_S = 60, 0.5

_LONGEST_COUNTDOWN_S = 2.0

#: Tasks that are due at a full second are published so long before, and up to a second more.
_PUNCTUAL_AHEAD_S = 2.0

#: What the publisher's connections are called on the server.
CLIENT_NAME = "publisher"

#: Sure: the server has it. In doubt: the connection broke on the way. Refused: the server said no.
Outcome = Literal["sure", "in doubt", "refused"]


@dataclass(frozen=True)
class Booking:
    """One submission.

    Attributes:
        task_id: the id of the task.
        due_s: when it may begin, unix time.
        acks_late: whether it is acknowledged after it ran.
        outcome: what became of the submission.
        error: why it is not sure.
    """

    task_id: str
    due_s: float
    acks_late: bool
    outcome: Outcome
    error: str = ""


class Publisher:
    """Publishes in a thread for each queue, for as long as the `with` block lasts or until `stop`.

    It never tries again, nor does its client: nothing is published twice. A queue that cannot be published to does not
    hold up the others.

    Args:
        app: an app with the tasks of `tests.worker_app`.
        rate: tasks a second, of all queues together.
        queues: their names.
        punctual_every: every so many tasks, one is due at a full second, like periodic tasks; 0 for none.
    """

    def __init__(
        self, app: Celery, rate: float, queues: Sequence[str] = ("celery",), *, punctual_every: int = 0
    ) -> None:
        self.bookings: list[Booking] = []
        self._app = app
        self._rate = rate / len(queues)
        self._punctual_every = punctual_every
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(queue, random.Random(seed)), daemon=True)
            for seed, queue in enumerate(queues, 1)
        ]

    def __enter__(self) -> Publisher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Publish nothing more."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "the publisher hangs"

    def _run(self, queue: str, luck: random.Random) -> None:
        with ExitStack() as stack:
            connection = stack.enter_context(self._app.connection_for_write())
            channel = connection.channel()
            channel.client.set_retry(Retry(NoBackoff(), 0))
            producer = self._app.amqp.Producer(channel, auto_declare=False)
            start = time.monotonic()
            for number in itertools.count():
                at_s = start + (number // (self._rate * _BURST_S)) * _BURST_S
                if self._stop.wait(max(0.0, at_s - time.monotonic())):
                    return
                self.bookings.append(self._publish(number, luck, producer=producer, queue=queue))

    def _publish(self, number: int, luck: random.Random, **options: Any) -> Booking:
        """Publish one: half of them acknowledged late, half of those and half of the others with a countdown."""
        countdown = luck.uniform(0, _LONGEST_COUNTDOWN_S) if number // 2 % 2 else 0.0
        if self._punctual_every and number % self._punctual_every == 0:
            countdown = 1 - time.time() % 1 + _PUNCTUAL_AHEAD_S
        seconds = _LONG_S if number % _LONG_EVERY == 0 else luck.uniform(0.002, 0.008)
        return self._submit(seconds, acks_late=number % 2 == 0, countdown=countdown, **options)

    def submit_long(self, seconds: float) -> str:
        """Publish one more that takes so long, and is acknowledged late; returns its id. Safe in any thread."""
        booking = self._submit(seconds, acks_late=True)
        self.bookings.append(booking)
        return booking.task_id

    def _submit(self, seconds: float, *, acks_late: bool, countdown: float = 0.0, **options: Any) -> Booking:
        task_id = str(uuid.uuid4())
        due_s = time.time() + countdown
        outcome: Outcome = "sure"
        error = ""
        try:
            self._app.tasks["work_late" if acks_late else "work"].apply_async(
                (seconds,), task_id=task_id, countdown=countdown or None, retry=False, **options
            )
        except Exception as exc:
            outcome = "refused" if _is_refusal(exc) else "in doubt"
            error = f"{type(exc).__name__}: {exc}"
        return Booking(task_id, due_s, acks_late, outcome, error)


def _is_refusal(exc: BaseException | None) -> bool:
    """Return whether the server answered with an error, and so has stored nothing."""
    while exc is not None:
        if isinstance(exc, (NotReplicated, exceptions.ConnectionError, exceptions.TimeoutError)):
            return False
        if isinstance(exc, exceptions.ResponseError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False

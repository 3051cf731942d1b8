"""A publisher: submits tasks at a steady rate, and books what became of each submission."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from celery import Celery
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq import NotReplicated, Unique
from celery_delayq.options.unique import For

#: Published at once, so that workers find a backlog; in seconds of the rate.
_BURST_S = 0.1

#: A publisher that was held up makes up for so much of what it missed, in seconds of the rate, and leaves out the rest.
_MADE_UP_S = 1.0

#: Every so many tasks, one takes long.
_LONG_EVERY, _LONG_S = 60, 0.5

_LONGEST_COUNTDOWN_S = 2.0

#: Every so many tasks, one has a priority, and two have a unique key. Both are delayed for a second, and published so
#: soon after one another that the first one still waits, in seconds.
_OPTIONS_EVERY, _PAIR_S = 20, 0.5

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
        sent_s: when it was published, unix time.
    """

    task_id: str
    due_s: float
    acks_late: bool
    outcome: Outcome
    error: str = ""
    sent_s: float = math.inf


class Pace:
    """When to publish the next task: at a steady rate, in bursts.

    A server that is slow for a minute is not sent all of that minute at once when it is well again: workers would
    need longer for that than they are given.

    Args:
        rate: tasks a second.
        start_s: when to begin, by a monotonic clock.
    """

    def __init__(self, rate: float, start_s: float) -> None:
        self._burst = rate * _BURST_S
        self._start_s = start_s
        self._numbers = itertools.count()

    def next(self, now_s: float) -> float:
        """Return when to publish the next task, by the clock that says `now_s`."""
        at_s = self._start_s + next(self._numbers) // self._burst * _BURST_S
        missed_s = max(0.0, now_s - at_s - _MADE_UP_S)
        self._start_s += missed_s
        return at_s + missed_s


class Publisher:
    """Publishes in a thread for each queue, for as long as the `with` block lasts or until `stop`.

    It never tries again, nor does its client: nothing is published twice. A queue that cannot be published to does not
    hold up the others.

    Args:
        app: an app with the tasks of `tests.worker_app`.
        rate: tasks a second, of all queues together.
        queues: their names.
        punctual_every: every so many tasks, one is due at a full second, like periodic tasks; 0 for none.
        has_options: whether some have a priority, and some a unique key, of each kind.
    """

    def __init__(
        self,
        app: Celery,
        rate: float,
        queues: Sequence[str] = ("celery",),
        *,
        punctual_every: int = 0,
        has_options: bool = False,
    ) -> None:
        self.bookings: list[Booking] = []
        self._app = app
        self._rate = rate / len(queues)
        self._punctual_every = punctual_every
        self._has_options = has_options
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
            pace = Pace(self._rate, time.monotonic())
            for number in itertools.count():
                now_s = time.monotonic()
                if self._stop.wait(max(0.0, pace.next(now_s) - now_s)):
                    return
                options = (
                    {"priority": luck.choice((3, 6, 9))} if self._has_options and number % _OPTIONS_EVERY == 0 else {}
                )
                self.bookings.append(self._publish(number, luck, producer=producer, queue=queue, **options))
                if self._has_options and number % _OPTIONS_EVERY == 1:
                    self._publish_pair(number // _OPTIONS_EVERY, producer=producer, queue=queue)

    def _publish(self, number: int, luck: random.Random, **options: Any) -> Booking:
        """Publish one: half of them acknowledged late, half of those and half of the others with a countdown."""
        countdown = luck.uniform(0, _LONGEST_COUNTDOWN_S) if number // 2 % 2 else 0.0
        if self._punctual_every and number % self._punctual_every == 0:
            countdown = 1 - time.time() % 1 + _PUNCTUAL_AHEAD_S
        seconds = _LONG_S if number % _LONG_EVERY == 0 else luck.uniform(0.002, 0.008)
        return self._submit(seconds, acks_late=number % 2 == 0, countdown=countdown, **options)

    def _publish_pair(self, number: int, **options: Any) -> None:
        """Publish two with the same key, of which one runs if both are delayed; with "replace", the second."""
        kinds = [(for_, on_conflict) for for_ in get_args(For) for on_conflict in ("ignore", "replace", "extend")]
        for_, on_conflict = kinds[number % len(kinds)]
        unique = Unique(key=str(uuid.uuid4()), for_=for_, on_conflict=on_conflict)
        pair = [self._submit(0.005, acks_late=True, countdown=1.0, unique=unique, **options) for _ in range(2)]
        goes = pair[0] if on_conflict == "replace" else pair[1]
        # If one was not stored for sure, or Redis was away for a second, the other one may run.
        settled = all(it.outcome == "sure" for it in pair) and pair[1].sent_s - pair[0].sent_s < _PAIR_S
        doubtful = (goes,) if settled else pair
        self.bookings += [
            replace(it, outcome="in doubt") if it in doubtful and it.outcome == "sure" else it for it in pair
        ]

    def submit_long(self, seconds: float) -> str:
        """Publish one more that takes so long, and is acknowledged late; returns its id. Safe in any thread."""
        booking = self._submit(seconds, acks_late=True)
        self.bookings.append(booking)
        return booking.task_id

    def _submit(self, seconds: float, *, acks_late: bool, countdown: float = 0.0, **options: Any) -> Booking:
        task_id = str(uuid.uuid4())
        sent_s = time.time()
        due_s = sent_s + countdown
        outcome: Outcome = "sure"
        error = ""
        try:
            self._app.tasks["work_late" if acks_late else "work"].apply_async(
                (seconds,), task_id=task_id, countdown=countdown or None, retry=False, **options
            )
        except Exception as exc:
            outcome = "refused" if _is_refusal(exc) else "in doubt"
            error = f"{type(exc).__name__}: {exc}"
        return Booking(task_id, due_s, acks_late, outcome, error, sent_s)


def _is_refusal(exc: BaseException | None) -> bool:
    """Return whether the server answered with an error, and so has stored nothing."""
    while exc is not None:
        if isinstance(exc, (NotReplicated, exceptions.ConnectionError, exceptions.TimeoutError)):
            return False
        if isinstance(exc, exceptions.ResponseError):
            return True
        exc = exc.__cause__ or exc.__context__
    return False

"""Keeper: the thread, with two connections, that does for a process at one server what must not wait for its tasks.

What it does are *duties*: to transfer what is due, to look after a consumer; at a Redis Sentinel, to follow the
master. They share one client, one subscription, and one way to survive an outage.

What holds up what
    Duties take turns, in steps that take some ms at most. The first one, the transfer, is the punctual one: it says
    when it has something to do next, and the others put off what would take them beyond that.

Errors
    If the connection for commands is lost, or the server cannot serve, all duties begin anew with another one. If only
    the subscription is lost, they begin anew with the same client, which may be all that the server has for them. What
    else goes wrong concerns the duty that met it: it begins anew after a pause, and the others go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from logging import getLogger
from typing import Protocol

import redis
from redis import exceptions

from celery_delayq.basics.native import NativeLoop
from celery_delayq.queue.connections import CONNECTION_ERRORS, LATE_S, Connect, Outage
from celery_delayq.queue.subscription import Heard, Subscription

logger = getLogger(__name__)

#: How much is heard before the duties work again, at most.
_MOST_HEARD = 1000


class Duty(Protocol):
    """Something that a keeper does, step by step. The keeper's thread calls everything here.

    Attributes:
        outage: whether it is interrupted.
    """

    outage: Outage

    @property
    def is_over(self) -> bool:
        """Whether it is to end: nothing is left to do, or nobody wants it any more."""

    def connected(self, client: redis.Redis) -> None:
        """Begin anew with a client. Nothing is heard yet."""

    def subscribed(self, subscription: Subscription) -> None:
        """Say what is to be heard."""

    def heard(self, heard: Heard) -> None:
        """Hear something, perhaps for another duty."""

    def work(self, until: float) -> float:
        """Do what is to be done now, for some ms.

        Args:
            until: when another duty has to work. What takes longer should wait, unless it has waited for long.

        Returns:
            When to work next; like `until`, on the monotonic clock.
        """

    def disconnected(self) -> None:
        """Forget the client and the subscription: they are lost."""

    def end(self) -> None:
        """Do what is left to do. It is connected, unless `disconnected` was called since."""


class Keeper:
    """Keeps any number of duties at one server. Its thread begins with the first one and ends after the last.

    It is a `NativeLoop`. Any thread may call the methods, signal handlers, too.

    Args:
        connect: called for every (re)connection. What returns a `redis.Redis` will do.
        begins_after_s: how long after the first duty was added it connects for the first time, in seconds.
    """

    def __init__(self, connect: Connect, *, begins_after_s: float = 0.0) -> None:
        self._connect = connect
        self._begins_after_s = begins_after_s
        self._duties: list[Duty] = []
        self._loop = NativeLoop(self._run, lambda: self._duties)
        # What belongs to one subscription.
        #: Those that have begun -> whether they hear.
        self._begun: dict[Duty, bool] = {}
        #: Those that are interrupted alone -> when they begin anew (monotonic).
        self._again_at: dict[Duty, float] = {}

    def add(self, duty: Duty, *, is_punctual: bool = False) -> None:
        """Begin with a duty.

        Raises:
            RuntimeError, OSError: the process may have no more threads, or no more descriptors.
        """
        self._duties.insert(0 if is_punctual else len(self._duties), duty)
        try:
            self._loop.begin()
        except BaseException:
            self._duties.remove(duty)
            raise
        self.wake()

    def has(self, duty: Duty) -> bool:
        """Return whether a duty was added and has not ended yet."""
        return duty in self._duties

    def wake(self) -> None:
        """Let all duties work now."""
        self._loop.wake()

    def end(self, duty: Duty, timeout_s: float) -> None:
        """End a duty that is over now; wait for that at most so many seconds. Its own thread does not wait."""
        self.wake()
        self._loop.wait(lambda: not self.has(duty), timeout_s)

    # -- its own thread

    def _run(self) -> None:
        self._begun.clear()
        self._again_at.clear()
        self._rest(self._begins_after_s)
        while self._has_duties():
            try:
                with self._connect() as client:
                    self._serve(client)
            except Exception as exc:
                self._interrupted(exc)

    def _has_duties(self) -> bool:
        """End the duties that are over; return whether any is left."""
        for duty in tuple(self._duties):
            if self._loop.is_exiting or duty.is_over:
                try:
                    duty.end()
                except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
                    logger.debug("%r cannot end as it should: %s", duty, exc)
                except Exception:
                    logger.exception("%r failed as it ended", duty)
                self._duties.remove(duty)
                self._begun.pop(duty, None)
                self._again_at.pop(duty, None)
        return bool(self._duties)

    def _serve(self, client: redis.Redis) -> None:
        """Work as long as the connection for commands lasts; the subscription may be lost alone."""
        while self._has_duties():
            self._turn(client, None)
            try:
                subscription = Subscription(client.connection_pool)
            except CONNECTION_ERRORS as exc:
                self._interrupted(exc)
                continue
            with closing(subscription):
                lost = self._listen(client, subscription)
            if lost is not None:
                self._interrupted(lost)

    def _listen(self, client: redis.Redis, subscription: Subscription) -> Exception | None:
        """Work until no duty is left; returns the error if the subscription is lost."""
        while self._has_duties():
            next_at = self._turn(client, subscription)
            wait_s = min(max(0.0, next_at - time.monotonic()), LATE_S)
            some: list[Heard] = []
            try:
                while len(some) < _MOST_HEARD and (heard := subscription.hear(wait_s, self._loop.waker_fd)):
                    some.append(heard)
                    wait_s = 0.0
            except CONNECTION_ERRORS as exc:
                return exc
            self._loop.drain()
            for heard in some:
                for duty in [duty for duty, hears in self._begun.items() if hears]:
                    with self._alone(duty):
                        duty.heard(heard)
        return None

    def _turn(self, client: redis.Redis, subscription: Subscription | None) -> float:
        """Let each duty work, if there is a subscription; return when one has to work next."""
        next_at = math.inf
        for duty in tuple(self._duties):
            again_at = self._again_at.get(duty, 0.0)
            if again_at > time.monotonic():
                next_at = min(next_at, again_at)
                continue
            with self._alone(duty):
                if duty not in self._begun:
                    self._again_at.pop(duty, None)
                    duty.connected(client)
                    self._begun[duty] = False
                if subscription is not None:
                    if not self._begun[duty]:
                        duty.subscribed(subscription)
                        self._begun[duty] = True
                    next_at = min(next_at, duty.work(next_at))
        return min([next_at, *self._again_at.values()])

    @contextmanager
    def _alone(self, duty: Duty) -> Iterator[None]:
        """What goes wrong in the block concerns only this duty, unless it is an error of the connection."""
        try:
            yield
        except CONNECTION_ERRORS:
            raise
        except Exception as exc:
            duty.disconnected()
            self._begun.pop(duty, None)
            self._again_at[duty] = time.monotonic() + duty.outage.note(exc)

    def _interrupted(self, exc: Exception) -> None:
        """Note that all duties are interrupted, and wait before the next attempt; not for those that are over."""
        self._begun.clear()
        self._again_at.clear()
        for duty in tuple(self._duties):
            duty.disconnected()
        if self._has_duties():
            self._rest(min(duty.outage.note(exc) for duty in tuple(self._duties)))

    def _rest(self, seconds: float) -> None:
        """Do nothing for so long, or until no duty is left."""
        until = time.monotonic() + seconds
        while self._has_duties() and (left_s := until - time.monotonic()) > 0:
            self._loop.sleep(left_s)

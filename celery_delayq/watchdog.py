"""Watchdog: a thread that renews a consumer's leases, and recovers the messages of consumers that are gone.

It has connections of its own and needs nothing of the process's main loop, so a task of any length keeps its lease.

How it sees that another consumer is gone
    Each watchdog is subscribed to a channel named after its consumer. A killed process loses its connections at once,
    and the channel its subscriber: a consumer whose channel was there before, and is missing in two looks a second
    apart, without a renewal in between, is gone. One that was gone before anybody looked is given half a lease. Where
    nobody can see that it is gone (its host vanished, it is suspended, no permission to look), the end of its lease
    decides.

What it learns from others
    A new watchdog says hello, on a channel that all of them hear. Who hears it looks at once, and names on that channel
    those that it misses: so what one of them saw is not lost when it is killed, too.

What an outage of Redis must not do
    After it, all leases look ended and all channels are missing. So a watchdog believes in a missing channel only
    where it or another one saw the channel while it was on this connection, or once it has been connected for half a
    lease, and in the end of a lease only once it has been connected for as long as a lease lasts.
"""

from __future__ import annotations

import _thread
import atexit
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from logging import ERROR, WARNING, getLogger
from typing import Any

from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq import keys, scripts
from celery_delayq.clock import ServerClock
from celery_delayq.connections import CONNECTION_ERRORS
from celery_delayq.consumer import Consumer
from celery_delayq.errors import LeaseLost
from celery_delayq.scripts import MAX_PUT_BACK

logger = getLogger(__name__)

#: Leases are renewed so many times before they end.
_RENEWALS_A_LEASE = 2.5

#: Consumers take turns in looking for missing ones: so many seconds a turn. One who is alone looks now and then.
_TURN_S, _LONE_LOOK_S = 0.8, 10.0

#: A missing consumer is looked for again after so many seconds.
_LOOK_AGAIN_S = 1.0

#: Most consumers of one list that are taken notice of.
_MOST_STRANGERS = 1000

#: A closed consumer that is not done yet tries again after so many seconds.
_FINISH_S = 1.0

#: Between two attempts to connect, and at most between two looks at what its consumer is doing, in seconds.
_PAUSE_S, _LONGEST_WAIT_S, _GREENLET_WAIT_S = 0.5, 2.0, 0.2


@dataclass
class _Missing:
    """A consumer that was missing in a look: since when (monotonic), and its scores then, by list."""

    since: float
    scores: dict[str, bytes]


class Watchdog:
    """Looks after one consumer until it is closed and done.

    Args:
        consumer: whose leases it renews; from its lists, messages of other consumers are recovered.
        on_lost: called when the consumer was given up; in the watchdog's thread.
    """

    def __init__(self, consumer: Consumer, on_lost: Callable[[], None] = lambda: None) -> None:
        self.consumer = consumer
        self._on_lost = on_lost
        self._client: Any = None
        self._has_ended = False
        self._stopping = False
        self._connected_at = 0.0
        self._renew_at = self._look_at = self._finish_at = 0.0
        self._clock = ServerClock()
        self._seen: set[str] = set()
        self._missing: dict[str, _Missing] = {}
        #: Whether there is a consumer that it did not know.
        self._has_news = False
        #: Whether it has looked for consumers that were gone before it came, and when it does, in seconds.
        self._knows_all = False
        self._patience_s = consumer.lease_s / 2
        self._is_interrupted = False

    def start(self) -> None:
        """Run in a thread of the operating system, also where gevent or eventlet replace Python's by greenlets.

        A greenlet would starve, and lose the lease, whenever a task computes for long.
        """
        start_native_thread(self.run)

    def stop(self) -> None:
        """End the thread within some seconds, whatever is left to do. Safe in any thread.

        With greenlets, it waits for that: a thread of the system that uses them must not outlive the interpreter.
        """
        self._stopping = True
        until = time.monotonic() + _LONGEST_WAIT_S
        while _has_greenlets() and not self._has_ended and time.monotonic() < until:
            time.sleep(0.01)

    def finish_at_exit(self) -> None:
        """Go on until the closed consumer is done; when the process ends, do what is left to do then."""
        atexit.register(self._finish_now)
        if self._has_ended:
            atexit.unregister(self._finish_now)

    def _finish_now(self) -> None:
        self.stop()
        consumer = self.consumer
        consumer.held.clear()  # nothing runs any more that could acknowledge it
        try:
            with consumer.connect() as client:
                consumer.finish(client)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            logger.info("Other consumers will put back what %s holds: %s", consumer.id, exc)

    # -- its own thread

    def run(self) -> None:
        """Look after the consumer. Never raises for what happens to the server or the network."""
        consumer = self.consumer
        try:
            while not self._stopping and not consumer.is_lost:
                try:
                    with consumer.connect() as client, closing(client.pubsub()) as pubsub:
                        self._client = client
                        if self._serve(pubsub):
                            return
                except LeaseLost:  # the thread that consumes says so
                    self._on_lost()
                except Exception as exc:
                    self._on_interrupted(exc)
        finally:
            self._client = None
            self._has_ended = True
            atexit.unregister(self._finish_now)

    def _on_interrupted(self, exc: Exception) -> None:
        if self._stopping:
            return
        if not self._is_interrupted:
            expected = isinstance(exc, CONNECTION_ERRORS)
            logger.log(
                WARNING if expected else ERROR,
                "The lease of %s cannot be renewed: %s; trying again...",
                self.consumer.id,
                str(exc).rstrip("."),
                exc_info=None if expected else exc,
            )
        self._is_interrupted = True
        time.sleep(_PAUSE_S)

    def _serve(self, pubsub: Any) -> bool:
        """Returns True once there is nothing left to do."""
        consumer = self.consumer
        pubsub.subscribe(keys.alive_channel(consumer.id, consumer.db), keys.hello_channel(consumer.db))
        self._connected_at = self._look_at = self._renew_at = time.monotonic()
        self._knows_all = False
        self._seen.clear()
        self._missing.clear()
        while not self._stopping:
            now = time.monotonic()
            if consumer.closed_at is None:
                if consumer.owed:
                    consumer.settle(self._client)
            elif now >= self._finish_at:
                self._finish_at = now + _FINISH_S
                if consumer.finish(self._client):
                    return True
            if now >= self._renew_at:
                self._renew()
            if now >= self._look_at:
                self._look()
            self._is_interrupted = False
            until = min(self._renew_at, self._look_at)
            if consumer.closed_at is not None:
                until = min(until, self._finish_at)
            longest_s = _GREENLET_WAIT_S if _has_greenlets() else _LONGEST_WAIT_S
            wait_s = min(max(0.01, until - time.monotonic()), longest_s)
            message = pubsub.get_message(timeout=wait_s)
            if message is not None:
                self._handle(message)
        return True

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":  # now the others can see this one
            self._client.publish(keys.hello_channel(self.consumer.db), self.consumer.id)
        elif message["type"] == "message":  # a new one, who may be missing soon, or one that another watchdog misses
            data = message["data"]
            other = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
            self._has_news = self._has_news or other not in self._seen
            self._seen.add(other)
            self._look_at = min(self._look_at, time.monotonic())

    def _renew(self) -> None:
        consumer = self.consumer
        sent = time.monotonic()
        seen = consumer.renew(self._client)
        if seen:
            self._clock.observe(seen[-1][1].now_ms * 1000, sent, time.monotonic())
        self._renew_at = time.monotonic() + consumer.lease_s / _RENEWALS_A_LEASE
        connected_for_s = time.monotonic() - self._connected_at
        for name, renewed in seen:
            for other, score in renewed.ended.items():
                # What was given up already, others have judged.
                if float(score) < 0 or connected_for_s >= consumer.lease_s:
                    self._recover(name, other, score, gone=False)

    def _look(self) -> None:
        consumer = self.consumer
        now = time.monotonic()
        prefix = keys.alive_channel("", consumer.db)
        try:
            channels = self._client.execute_command("PUBSUB CHANNELS", prefix + "*", **{NEVER_DECODE: True})
        except exceptions.ResponseError as exc:
            logger.info("Cannot see which consumers are alive, so their leases decide: %s", exc)
            self._look_at = float("inf")
            return
        alive = {channel.decode("utf-8", "replace").removeprefix(prefix) for channel in channels}
        if not self._knows_all and now - self._connected_at >= self._patience_s:
            self._knows_all = True
            self._missing.update({other: _Missing(now, scores) for other, scores in self._strangers(alive).items()})
        for other in (self._seen | self._missing.keys()) - alive:
            missing = self._missing.get(other)
            if missing is None:
                self._missing[other] = _Missing(now, self._scores(other))
            elif now - missing.since >= _LOOK_AGAIN_S:
                for name, score in missing.scores.items():
                    self._recover(name, other, score, gone=True)
                del self._missing[other]
                self._seen.discard(other)
        for other in alive:
            self._missing.pop(other, None)
        self._tell_missing()
        self._seen |= alive
        self._look_at = now + self._seconds_until_turn(sorted(alive))
        if self._missing:  # since the first look that missed them, however often newcomers made this one look again
            self._look_at = min(missing.since for missing in self._missing.values()) + _LOOK_AGAIN_S
        if not self._knows_all:
            self._look_at = min(self._look_at, self._connected_at + self._patience_s)

    def _tell_missing(self) -> None:
        """Tell a watchdog that is new whom this one misses: it never saw them, and this one may end before it acts."""
        if not self._has_news:
            return
        self._has_news = False
        for other in self._missing.keys() & self._seen:
            self._client.publish(keys.hello_channel(self.consumer.db), other)

    def _strangers(self, alive: set[str]) -> dict[str, dict[str, bytes]]:
        """Return consumers that this watchdog never saw, and that are silent: they were gone before it came.

        Their scores, by list. Who is alive has had the time to connect, and to renew its lease.
        """
        found: dict[str, dict[str, bytes]] = {}
        renewed_before_ms = -self._clock.seconds_until(0) * 1000 + self.consumer.lease_ms - self._patience_s * 1000
        for name, queue_keys in list(self.consumer.joined.items()):
            known = self._client.zrange(queue_keys.consumers, 0, _MOST_STRANGERS - 1, withscores=True)
            for other, score in known:
                stranger = other.decode("utf-8", "replace") if isinstance(other, bytes) else other
                if 0 < score <= renewed_before_ms and stranger not in alive | self._seen:
                    found.setdefault(stranger, {})[name] = _text(score)
        return found

    def _seconds_until_turn(self, alive: list[str]) -> float:
        """Return when it is this one's turn to look: all have one in turn, by the server's clock."""
        since_epoch_s = -self._clock.seconds_until(0)
        if len(alive) < 2 or self.consumer.id not in alive or since_epoch_s == float("inf"):
            return _LONE_LOOK_S if len(alive) < 2 else _TURN_S
        round_s = len(alive) * _TURN_S
        until_s = (alive.index(self.consumer.id) * _TURN_S - since_epoch_s) % round_s
        return until_s if until_s > _TURN_S / 8 else until_s + round_s

    def _scores(self, other: str) -> dict[str, bytes]:
        """Return the scores of another consumer on the lists of this one."""
        found = {
            name: self._client.execute_command("ZSCORE", queue_keys.consumers, other, **{NEVER_DECODE: True})
            for name, queue_keys in list(self.consumer.joined.items())
        }
        return {name: _text(score) for name, score in found.items() if score is not None}

    def _recover(self, name: str, other: str, score: bytes, *, gone: bool) -> None:
        """Put the messages of a consumer that is gone back, in their old order, to the front of their list."""
        consumer = self.consumer
        queue_keys = consumer.joined.get(name)
        if queue_keys is None:
            return
        moved = 0
        while True:
            found: list[bytes] = self._client.execute_command(
                "LRANGE", queue_keys.in_flight(other), 0, MAX_PUT_BACK - 1, **{NEVER_DECODE: True}
            )
            messages = [(raw, *consumer.redelivery.recover(raw)) for raw in found]
            done = scripts.recover(
                self._client,
                queue_keys,
                consumer=other,
                score=score,
                gone=gone,
                alive_channel=keys.alive_channel(other, consumer.db),
                messages=messages,
            )
            moved += sum(done.moved)
            dead = [
                raw for (raw, _, is_dead), was_moved in zip(messages, done.moved, strict=False) if is_dead and was_moved
            ]
            if dead:
                self._tell_dead(name, dead)
            score = done.score
            if not any(done.moved) or not done.left:
                break
        if moved:
            logger.warning("Put back %d messages of %r, whose consumer %s is gone", moved, name, other)

    def _tell_dead(self, name: str, dead: list[bytes]) -> None:
        logger.error(
            "Set aside %d messages of %r in the list %r: they were delivered too often without an acknowledgement, "
            "or are none",
            len(dead),
            name,
            keys.QueueKeys.of(name).dead,
        )

        def tell() -> None:
            for raw in dead:
                self.consumer.redelivery.on_dead(name, raw)

        start_native_thread(tell)  # it may take long, and the lease must not wait


def _text(score: Any) -> bytes:
    """Return a score as Lua sees it; redis-py may have made a float of it."""
    return score if isinstance(score, bytes) else b"%d" % score


def _has_greenlets() -> bool:
    """Return whether gevent or eventlet may have replaced Python's threads."""
    return "gevent.monkey" in sys.modules or "eventlet.patcher" in sys.modules


def start_native_thread(target: Callable[[], None]) -> None:
    """Run a function in a daemon thread of the operating system, whatever has been monkey-patched."""
    start: Any = _thread.start_new_thread
    if "gevent.monkey" in sys.modules:
        start = sys.modules["gevent.monkey"].get_original("_thread", "start_new_thread")
    elif "eventlet.patcher" in sys.modules:
        start = sys.modules["eventlet.patcher"].original("_thread").start_new_thread
    start(target, ())

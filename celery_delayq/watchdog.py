"""Watchdog: a thread that renews a consumer's leases, and recovers the messages of consumers that are gone.

It has connections of its own and needs nothing of the process's main loop, so a task of any length keeps its lease.

How it sees that another consumer is gone
    Each watchdog is subscribed to a channel named after its consumer. All of them look in turns whose channel is
    missing; `presence` says what follows from that. Where nobody can see that a consumer is gone (it is suspended, no
    permission to look), the end of its lease decides.

What watchdogs tell each other
    A new one says hello, on a channel that all of them hear. Who misses a consumer whose process it cannot ask for,
    asks the others; one in the same place answers that it runs, or looks at once.

What a lost connection must not do
    A killed process loses its connections, and so does a living one, which therefore connects again at once. Before it
    subscribes, and as long as it cannot, it renews its leases, by which others see that it lives.

What an outage of Redis must not do
    After it, all leases look ended and all channels are missing. So whatever was seen before a connection was made does
    not count, and the end of a lease is believed only by who has been connected for as long as a lease lasts. So it is
    when the server's clock is set forward, by which leases are measured.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from logging import getLogger
from typing import Any

from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq import keys, scripts
from celery_delayq.clock import ServerClock
from celery_delayq.connections import CONNECTION_ERRORS, Outage
from celery_delayq.consumer import Consumer
from celery_delayq.errors import LeaseLost
from celery_delayq.presence import Presence
from celery_delayq.process import is_running
from celery_delayq.scripts import MAX_PUT_BACK, Renewed

logger = getLogger(__name__)

#: How long a consumer whose process nobody can ask for has to be absent and silent before it is given up, in seconds:
#: longer than a living one needs to connect again.
PATIENCE_S = 6.0

#: Leases are renewed so many times before they end.
_RENEWALS_A_LEASE = 2.5

#: A server clock that is set forward by so many seconds ends leases.
_STEP_S = 1.0

#: Consumers take turns in looking for missing ones: so many seconds a turn. One who is alone looks now and then.
_TURN_S, _LONE_LOOK_S = 0.8, 10.0

#: Most consumers of one list that are taken notice of.
_MOST_STRANGERS = 1000

#: Messages are put back for so many seconds at a time, since the consumer's own lease must not end meanwhile.
_ROUND_S = 0.25

#: Who was given up is visited for so long, in ms: a blocking command that it sent may still give it a message.
_REMEMBER_MS = 60_000

#: A closed consumer that is not done yet tries again after so many seconds.
_FINISH_S = 1.0

#: Longest pause between two attempts to connect, and between two looks at what its consumer is doing, in seconds.
_LONGEST_PAUSE_S, _LONGEST_WAIT_S, _GREENLET_WAIT_S = 1.0, 1.0, 0.2

#: How long `stop` waits where there are greenlets, in seconds.
_STOP_S = 2.0

#: What watchdogs say about a consumer; without such a word before its id, it is a hello.
_MISSING, _RUNNING = "missing", "running"


@dataclass
class _Gone:
    """A consumer whose messages of one list are to be put back.

    Attributes:
        score: its lease, as seen.
        is_absent: whether it is gone although its lease lasts.
        has_ended: whether its process is known to have ended.
        moved: how many messages were put back so far.
    """

    score: bytes
    is_absent: bool = False
    has_ended: bool = False
    moved: int = 0


class Watchdog:
    """Looks after one consumer until it is closed and done.

    Args:
        consumer: whose leases it renews; from its lists, messages of other consumers are recovered.
        on_lost: called when the consumer was given up; in the watchdog's thread.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(
        self, consumer: Consumer, on_lost: Callable[[], None] = lambda: None, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.consumer = consumer
        self._on_lost = on_lost
        self._patience_s = patience_s
        self._pid = os.getpid()
        self._client: Any = None
        self._has_ended = False
        self._stopping = False
        self._outage = Outage(
            logger,
            f"Renewal of the leases of {consumer.id}",
            f"They last for {consumer.lease_s:g} s",
            lambda: self._stopping,
            _LONGEST_PAUSE_S,
        )
        self._renew_at = self._look_at = self._finish_at = 0.0
        self._clock = ServerClock()
        #: From when on it believes that a lease has ended (monotonic).
        self._believes_leases_at = math.inf
        self._presence = Presence(patience_s)
        #: Lists whose leases were read since it connected.
        self._read: set[str] = set()
        self._may_look = True
        #: List and consumer of messages that are to be put back.
        self._gone: dict[tuple[str, str], _Gone] = {}
        #: List -> what the server said when messages were to be put back there.
        self._refused: dict[str, str] = {}

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
        until = time.monotonic() + _STOP_S
        while _has_greenlets() and not self._has_ended and time.monotonic() < until:
            time.sleep(0.01)

    def finish_at_exit(self) -> None:
        """Go on until the closed consumer is done; when the process ends, do what is left to do then."""
        atexit.register(self._finish_now)
        if self._has_ended:
            atexit.unregister(self._finish_now)

    def _finish_now(self) -> None:
        if os.getpid() != self._pid:  # a forked child ends, and what it inherited goes on in its parent
            return
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
                    with consumer.connect() as self._client:
                        self._serve()
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
        if not self._stopping:
            self._outage.begins(exc)

    def _serve(self) -> None:
        """Look after the consumer for as long as it has a connection for commands; the subscription may be lost alone.

        It has a pool of its own: the other connection would be the next to be used, and be lost, too.
        """
        while not self._stopping and not self._tend():
            self._believes_leases_at = time.monotonic() + self.consumer.lease_s
            self._presence = Presence(self._patience_s)
            self._read.clear()
            self._gone.clear()
            self._renew()
            try:
                with self.consumer.connect() as listener, closing(listener.pubsub()) as pubsub:
                    if self._watch(pubsub):
                        return
            except LeaseLost:  # one of them, too
                raise
            except CONNECTION_ERRORS as exc:
                self._on_interrupted(exc)

    def _watch(self, pubsub: Any) -> bool:
        """Returns whether there is nothing left to do."""
        consumer = self.consumer
        pubsub.subscribe(keys.alive_channel(consumer.id, consumer.db), keys.hello_channel(consumer.db))
        self._look_at, self._may_look = time.monotonic(), True
        while not self._stopping:
            if self._tend():
                return True
            now = time.monotonic()
            if now >= self._renew_at:
                self._renew()
            if self._may_look and (now >= self._look_at or set(consumer.joined) - self._read):
                self._look()
            self._recover_for_a_while()
            self._outage.ends()
            message = pubsub.get_message(timeout=self._wait_s())
            if message is not None:
                self._handle(message)
        return True

    def _tend(self) -> bool:
        """Do what is left to do for its consumer; returns whether that was all, and the consumer is closed."""
        consumer, now = self.consumer, time.monotonic()
        if consumer.closed_at is None:
            if consumer.owed:
                consumer.settle(self._client)
            return False
        if now < self._finish_at:
            return False
        self._finish_at = now + _FINISH_S
        return consumer.finish(self._client)

    def _wait_s(self) -> float:
        """Return for how many seconds there is nothing to do."""
        if self._gone:
            return 0.0
        until = min(self._renew_at, self._look_at if self._may_look else math.inf)
        if self.consumer.closed_at is not None:
            until = min(until, self._finish_at)
        longest_s = _GREENLET_WAIT_S if _has_greenlets() else _LONGEST_WAIT_S
        return min(max(0.01, until - time.monotonic()), longest_s)

    def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":  # now the others can see this one
            self._say(self.consumer.id)
            return
        if message["type"] != "message":
            return
        data = message["data"]
        said = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        word, _, other = said.partition(" ")
        if word == _RUNNING:
            self._presence.vouch(other)
        elif word == _MISSING:
            running = is_running(other)
            if running:
                self._say(f"{_RUNNING} {other}")
            elif running is False:
                self._presence.known.add(other)
                self._look_at = time.monotonic()
        else:  # a new one: so many more take turns
            self._presence.known.add(said)
            self._look_at = min(self._look_at, time.monotonic() + len(self._presence.known) * _TURN_S)

    def _say(self, what: str) -> None:
        self._client.publish(keys.hello_channel(self.consumer.db), what)

    def _renew(self) -> None:
        consumer = self.consumer
        sent = time.monotonic()
        seen = consumer.renew(self._client)
        now = time.monotonic()
        self._renew_at = now + consumer.lease_s / _RENEWALS_A_LEASE
        if seen:
            step_s = self._clock.observe(seen[-1][1].now_ms * 1000, sent, now)
            if step_s > _STEP_S:
                logger.warning("The clock of Redis was set forward by %.1f s; leases that ended by that last", step_s)
                self._believes_leases_at = now + consumer.lease_s
        for name, renewed in seen:
            self._presence.known |= renewed.silent.keys()
            if now >= self._believes_leases_at:
                self._gone.update({(name, other): _Gone(score) for other, score in renewed.ended.items()})
        self._visit_given_up(seen)

    def _visit_given_up(self, seen: list[tuple[str, Renewed]]) -> None:
        """Put back what the server gave to consumers that were given up; forget those that are long gone."""
        places = [
            (name, other, score, float(score) + renewed.now_ms > _REMEMBER_MS)
            for name, renewed in seen
            for other, score in renewed.given_up.items()
            if name in self.consumer.joined
        ]
        if not places:
            return
        with self._client.pipeline(transaction=False) as pipe:
            for name, other, _, _ in places:
                pipe.llen(keys.QueueKeys.of(name, self.consumer.db).in_flight(other))
            lengths = pipe.execute()
        for (name, other, score, is_over), length in zip(places, lengths, strict=True):
            if length or is_over:
                self._gone[name, other] = _Gone(score)

    def _look(self) -> None:
        consumer = self.consumer
        now = time.monotonic()
        prefix = keys.alive_channel("", consumer.db)
        try:
            channels = self._client.execute_command("PUBSUB CHANNELS", prefix + "*", **{NEVER_DECODE: True})
        except exceptions.ResponseError as exc:
            logger.info("Cannot see which consumers are alive, so their leases decide: %s", exc)
            self._may_look = False
            return
        alive = {channel.decode("utf-8", "replace").removeprefix(prefix) for channel in channels}
        self._presence.known |= self._strangers()
        seen = self._presence.look(alive, self._leases(self._presence.known - alive - {consumer.id}), now)
        for other, gone in seen.gone.items():
            self._gone.update(
                {(name, other): _Gone(score, True, gone.has_ended) for name, score in gone.leases.items()}
            )
        for other in seen.in_doubt:
            self._say(f"{_MISSING} {other}")
        self._look_at = min(now + self._seconds_until_turn(sorted(alive)), self._presence.look_at)

    def _strangers(self) -> set[str]:
        """Return who has leases on lists that its consumer has joined since the last look."""
        joined = dict(self.consumer.joined)
        found: set[str] = set()
        for name in joined.keys() - self._read:
            known = self._client.execute_command(
                *("ZRANGEBYSCORE", joined[name].consumers, "(0", "+inf", "LIMIT", 0, _MOST_STRANGERS),
                **{NEVER_DECODE: True},
            )
            found |= {other.decode("utf-8", "replace") for other in known}
        self._read = set(joined)
        return found

    def _leases(self, others: set[str]) -> dict[str, dict[str, bytes]]:
        """Return the leases of other consumers on the lists of this one: consumer -> list -> score."""
        found: dict[str, dict[str, bytes]] = {}
        joined = list(self.consumer.joined.items())
        if not others or not joined:
            return found
        names = sorted(others)
        with self._client.pipeline(transaction=False) as pipe:
            for _, queue_keys in joined:
                pipe.execute_command("ZMSCORE", queue_keys.consumers, *names, **{NEVER_DECODE: True})
            replies = pipe.execute()
        for (name, _), scores in zip(joined, replies, strict=True):
            for other, score in zip(names, scores, strict=True):
                if score is not None and float(score) > 0:
                    found.setdefault(other, {})[name] = _text(score)
        return found

    def _seconds_until_turn(self, alive: list[str]) -> float:
        """Return when it is this one's turn to look: all have one in turn, by the server's clock."""
        since_epoch_s = -self._clock.seconds_until(0)
        if len(alive) < 2 or self.consumer.id not in alive or since_epoch_s == float("inf"):
            return _LONE_LOOK_S if len(alive) < 2 else _TURN_S
        round_s = len(alive) * _TURN_S
        until_s = (alive.index(self.consumer.id) * _TURN_S - since_epoch_s) % round_s
        return until_s if until_s > _TURN_S / 8 else until_s + round_s

    def _recover_for_a_while(self) -> None:
        """Put back messages of consumers that are gone; what is not done yet is left to the next round."""
        until = time.monotonic() + _ROUND_S
        while self._gone and time.monotonic() < until:
            name, other = next(iter(self._gone))
            try:
                self._recover(name, other, self._gone.pop((name, other)))
                self._refused.pop(name, None)
            except CONNECTION_ERRORS:
                raise
            except exceptions.ResponseError as exc:
                if self._refused.get(name) != str(exc):
                    logger.error("Cannot put back messages of %r, whose consumer %s is gone: %s", name, other, exc)
                self._refused[name] = str(exc)

    def _recover(self, name: str, other: str, gone: _Gone) -> None:
        """Put messages of a consumer that is gone back, in their old order, to the front of their list.

        At most what one call of the script takes; the rest is left to the next round.
        """
        consumer = self.consumer
        queue_keys = consumer.joined.get(name)
        if queue_keys is None:
            return
        found: list[bytes] = self._client.execute_command(
            "LRANGE", queue_keys.in_flight(other), 0, MAX_PUT_BACK - 1, **{NEVER_DECODE: True}
        )
        messages = [(raw, *consumer.redelivery.recover(raw)) for raw in found]
        done = scripts.recover(
            self._client,
            queue_keys,
            consumer=other,
            score=gone.score,
            gone=gone.is_absent,
            alive_channel=keys.alive_channel(other, consumer.db) if gone.has_ended else "",
            messages=messages,
        )
        dead = [
            raw for (raw, _, is_dead), was_moved in zip(messages, done.moved, strict=False) if is_dead and was_moved
        ]
        if dead:
            self._tell_dead(name, dead)
        gone.moved += sum(done.moved) - len(dead)
        if any(done.moved) and done.left:
            gone.score = done.score
            self._gone[name, other] = gone
        elif gone.moved:
            logger.warning("Put back %d messages of %r, whose consumer %s is gone", gone.moved, name, other)

    def _tell_dead(self, name: str, dead: list[bytes]) -> None:
        logger.error(
            "Set aside %d messages of %r in the list %r: their workers were killed too often while they ran, or they "
            "cannot be read. `celery delayq dead list` shows which, and why",
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

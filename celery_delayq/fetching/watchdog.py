"""Watchdog: renews a consumer's leases, and recovers the messages of dead consumers.

It is a duty of a keeper, and does not need the main loop of the process. So a task may run for any time without losing
its lease.

How it notices that another consumer is gone
    Each watchdog subscribes to a channel named after its consumer. The watchdogs take turns to look which channels are
    missing; `presence` decides what follows from that. If nobody can see that a consumer is gone (it is suspended, or
    the server does not allow the look), the end of its lease decides, unless somebody sees that its process is at work.

What watchdogs tell each other
    A new watchdog says hello on a channel that all of them hear. A watchdog that misses a consumer, and cannot check
    its process, asks the others. A watchdog in the same place as that process answers that it runs, or looks at once.

Lost connections
    A killed process loses its connections, but so does a living one. A living process therefore reconnects at once. It
    renews its leases before it subscribes, and as long as it cannot subscribe, so that others see that it lives.

Outages of Redis
    After an outage, all leases look ended and all channels are missing. So a watchdog ignores what it saw before it
    connected, and believes that a lease has ended only after it was connected for the length of a lease. The same
    applies if the server's clock, which measures the leases, is set forward.

Lists elsewhere
    If a slot of a cluster has moved, a consumer may have a lease on a list at another node. If that node is away, only
    this list waits: everything else goes on. When the node is back, the watchdog believes that a lease on the list has
    ended only after the length of a lease.

Deleted data
    If the leases were deleted (FLUSHDB), a living consumer joins again. One that was killed before that has left only
    what it had in flight. So a watchdog looks for in-flight lists, a thousand keys at a time.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import Any

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.basics.native import has_greenlets
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.others import Others
from celery_delayq.fetching.presence import ANSWER_S, Presence
from celery_delayq.fetching.process import is_at_work, is_running
from celery_delayq.fetching.recovery import Claim, Recovery
from celery_delayq.queue import keys
from celery_delayq.queue.clock import ServerClock
from celery_delayq.queue.connections import (
    CONNECTION_ERRORS,
    Outage,
    passing_refusal,
    refusals,
)
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.paused import PAUSED
from celery_delayq.queue.scripts import Renewed
from celery_delayq.queue.subscription import Heard, Subscription

logger = getLogger(__name__)

#: How long a consumer must be absent and silent before it is given up, in seconds, if nobody can check its process. A
#: living consumer reconnects sooner than this.
PATIENCE_S = 6.0

#: How many times a lease is renewed before it would end.
_RENEWALS_A_LEASE = 2.5

#: If the server's clock is set forward by more than this, in seconds, ended leases are not believed for a while.
_STEP_S = 1.0

#: Consumers take turns to look for missing ones. Length of a turn, and the interval for a lone consumer, in seconds. A
#: lone one hears of others: new ones say hello, and a renewal tells which are silent.
TURN_S, _LONE_LOOK_S = 0.8, 30.0

#: How long a given-up consumer is still checked, in ms: a blocking command that it sent may still give it a message.
_REMEMBER_MS = 60_000

#: Pause before an unfinished closed consumer tries again, in seconds.
_FINISH_S = 1.0

#: Longest pause between two attempts to connect, and longest time until the watchdog looks what its consumer is doing,
#: in seconds.
_LONGEST_PAUSE_S, _LONGEST_WAIT_S = 1.0, 1.0

#: What a step may take, and for how long another duty that has to work sooner than that may put it off, in seconds.
_STEP_TAKES_S, _PUT_OFF_S = 0.01, 0.25

#: How long `stop` waits if there are greenlets, in seconds.
_STOP_S = 2.0

#: Words that watchdogs say about a consumer, followed by its id. An id without a word is a hello.
_MISSING, _RUNNING, _SUSPENDED = "missing", "running", "suspended"


class Watchdog:
    """Looks after one consumer until it is closed and done.

    Args:
        consumer: the consumer whose leases it renews, and on whose lists it recovers messages of other consumers.
        keeper: does so, from `start()` on.
        on_lost: called in the keeper's thread when others have given the consumer up.
        on_paused: called there when queues may have been paused or resumed.
        patience_s: see `PATIENCE_S`.
        turn_s: length of a turn to look for missing consumers, in seconds.
        is_running: see `process.is_running`.

    Attributes:
        outage: whether it is interrupted.
    """

    def __init__(
        self,
        consumer: Consumer,
        keeper: Keeper,
        on_lost: Callable[[], None] = lambda: None,
        on_paused: Callable[[], object] = lambda: None,
        *,
        patience_s: float = PATIENCE_S,
        turn_s: float = TURN_S,
        is_running: Callable[[str], bool | None] = is_running,
    ) -> None:
        self.consumer = consumer
        self._keeper = keeper
        self._on_lost, self._on_paused = on_lost, on_paused
        self._turn_s = turn_s
        self._is_running = is_running
        self._new_presence = partial(Presence, patience_s, is_running)
        self._pid = os.getpid()
        self._client: Any = None
        self._subscription: Subscription | None = None
        consumer.outbox.on_owed = self._settle_now
        self._stopping = self._is_done = self._is_woken = False
        #: When it last worked (monotonic).
        self._worked_at = -math.inf
        self.outage = Outage(
            logger,
            f"Lease renewal of consumer {consumer.id}",
            f"The leases last for {consumer.leases.seconds:g} s",
            longest_pause_s=_LONGEST_PAUSE_S,
        )
        self._renew_at = self._look_at = self._finish_at = 0.0
        self._clock = ServerClock()
        #: It believes that a lease has ended only from this time on (monotonic).
        self._believes_leases_at = math.inf
        #: The same for lists whose leases could not be renewed for a while; infinite as long as that lasts.
        self._believes_list_at: dict[str, float] = {}
        self._presence = self._new_presence()
        self._others = Others(consumer.leases)
        self._may_look = True
        self._recovery = Recovery(consumer.leases, consumer.redelivery, consumer.db)

    def start(self) -> None:
        """Let the keeper look after the consumer."""
        atexit.register(self._finish_now)
        self._keeper.add(self)

    def stop(self) -> None:
        """End within some seconds, even if work is left. Safe in any thread.

        With greenlets, it waits for that: as the process ends, nothing may use them any more.
        """
        self._stopping = True
        atexit.unregister(self._finish_now)
        self._keeper.end(self, _STOP_S if has_greenlets() else 0.0)

    def is_alive(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._keeper.has(self)

    def _settle_now(self) -> None:
        """Settle what the consumer owes. Safe in any thread."""
        self._is_woken = True
        self._keeper.wake()

    def knows(self, other: str) -> bool:
        """Return whether it would notice that a consumer is gone: it has seen it. Safe in any thread."""
        return other in self._presence.known

    def _finish_now(self) -> None:
        """Put everything back as the process ends: nobody has closed the consumer, or it is not done."""
        if os.getpid() != self._pid:  # a forked child ends; the consumer belongs to its parent
            return
        self.stop()
        consumer = self.consumer
        consumer.end()
        try:
            with consumer.connect() as client:
                consumer.finish(client)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            logger.info("Consumer %s cannot put back its messages, so others will: %s", consumer.id, exc)

    # -- in the thread of the keeper, see `Duty`

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, or is not needed any more."""
        return self._stopping or self._is_done or self.consumer.is_lost

    def connected(self, client: redis.Redis) -> None:
        """Forget what was seen before an outage, and renew: as long as it cannot subscribe, that shows it lives."""
        self._client = client
        self._believes_leases_at = time.monotonic() + self.consumer.leases.seconds
        self._presence = self._new_presence()
        self._others.forget()
        self._recovery.forget()
        try:
            self._is_done = self._tend()
            if not self._is_done:
                self._renew()
        except LeaseLost:  # the consuming thread found out. LeaseLost is one of CONNECTION_ERRORS
            self._on_lost()

    def subscribed(self, subscription: Subscription) -> None:
        """Let others see the consumer, and watch them."""
        consumer = self.consumer
        self._subscription = subscription
        subscription.subscribe(keys.alive_channel(consumer.id, consumer.db), keys.hello_channel(consumer.db))
        self._say(consumer.id)  # from now on, the others can see this one
        self._on_paused()  # it may have missed that
        consumer.conversation.hears(subscription.told)
        self._look_at, self._may_look = time.monotonic(), True

    def disconnected(self) -> None:
        """Forget what belongs to the connection."""
        self._client = self._subscription = None
        self.consumer.conversation.hears(None)

    def end(self) -> None:
        """Let others see that the consumer is gone. Whatever else is left is not done."""
        atexit.unregister(self._finish_now)
        subscription = self._subscription
        self.disconnected()
        if subscription is not None:
            subscription.unsubscribe(keys.alive_channel(self.consumer.id, self.consumer.db))

    def work(self, until: float) -> float:
        """Settle, renew, look and recover, if it is time to; not if that would hold up another duty."""
        due_at, now = self._due_at(), time.monotonic()
        if due_at > now:
            return due_at
        if until < now + _STEP_TAKES_S and now < due_at + _PUT_OFF_S:
            return max(until, now)
        self._is_woken = False
        try:
            self._step(now)
        except LeaseLost:
            self._on_lost()
        self._worked_at = time.monotonic()
        return now if self.is_over else self._due_at()

    def _step(self, now: float) -> None:
        self._is_done = self._tend()
        if self._is_done:
            return
        if now >= self._renew_at:
            self._renew()
        if self._may_look and (now >= self._look_at or self._others.are_unread):
            self._look()
        self._recovery.go_on(self._client)
        self.outage.ends()

    def _due_at(self) -> float:
        """Return when to work next (monotonic)."""
        if self._is_woken or self._recovery.is_needed:
            return self._worked_at
        due_at = min(self._renew_at, self._look_at if self._may_look else math.inf, self._worked_at + _LONGEST_WAIT_S)
        if self.consumer.is_closed:
            due_at = min(due_at, self._finish_at)
        return max(due_at, self._worked_at + 0.01)

    def _tend(self) -> bool:
        """Do what is left to do for the consumer; returns True if it is closed and everything is done."""
        consumer, now = self.consumer, time.monotonic()
        if not consumer.is_closed:
            consumer.settle(self._client)
            return False
        if now < self._finish_at:
            if consumer.outbox.owed:
                consumer.settle(self._client)
            if not consumer.is_done:
                return False
        self._finish_at = now + _FINISH_S
        return consumer.finish(self._client)

    def heard(self, heard: Heard) -> None:
        """Hear what other watchdogs say, or which lists are written to."""
        if not heard.channel:
            self.consumer.conversation.on_changed(heard.changed)
        if heard.channel != keys.hello_channel(self.consumer.db) or not heard.said:
            return
        word, _, other = heard.said.partition(" ")
        if word == PAUSED:
            self._on_paused()
        elif word in (_RUNNING, _SUSPENDED):
            self._presence.vouch(other, time.monotonic(), is_at_work=word == _RUNNING)
        elif word == _MISSING:
            running = self._is_running(other)
            if running:
                self._say(f"{_RUNNING if is_at_work(other) else _SUSPENDED} {other}")
            elif running is False:
                self._presence.known.add(other)
                self._look_at = time.monotonic()
        else:  # a new consumer: one more takes turns
            self._presence.known.add(heard.said)
            self._look_at = min(self._look_at, time.monotonic() + len(self._presence.known) * self._turn_s)

    def _say(self, what: str) -> None:
        self._client.publish(keys.hello_channel(self.consumer.db), what)

    def _renew(self) -> None:
        consumer = self.consumer
        sent = time.monotonic()
        seen = consumer.renew(self._client)
        now = time.monotonic()
        consumer.unique_keys.renew(self._client)
        self._renew_at = now + consumer.leases.seconds / _RENEWALS_A_LEASE
        if seen:
            refusals.end(self._client, logger)
            step_s = self._clock.observe(seen[-1][1].now_ms * 1000, sent, now)
            if step_s > _STEP_S:
                lease_s = consumer.leases.seconds
                logger.warning(
                    "The clock of Redis was set forward by %.1f s. No lease counts as ended for %g s", step_s, lease_s
                )
                self._believes_leases_at = now + lease_s
        self._doubt_lists({name for name, _ in seen}, now)
        for name, renewed in seen:
            if renewed.silent.keys() - self._presence.known:
                self._look_at = now
            self._presence.known |= renewed.silent.keys()
            if now >= max(self._believes_leases_at, self._believes_list_at.get(name, 0.0)):
                for other, score in renewed.ended.items():
                    self._judge(name, other, score, now)
        self._visit_given_up(seen)
        self._on_paused()  # nobody says so if the data was deleted, and a word may be lost

    def _judge(self, name: str, other: str, score: bytes, now: float) -> None:
        """Take the messages of a consumer whose lease on a list has ended, unless its process is at work."""
        verdict = self._presence.judge(other, now)
        channel = keys.alive_channel(other, self.consumer.db)
        if verdict == "take" or (verdict == "keep" and not self._others.is_subscribed(self._client, channel)):
            self._recovery.add(name, other, Claim(score))
        elif verdict != "keep":
            self._renew_at = min(self._renew_at, now + ANSWER_S)
            if verdict == "ask":
                self._say(f"{_MISSING} {other}")

    def _doubt_lists(self, renewed: set[str], now: float) -> None:
        """Do not believe ended leases on lists that were not renewed: others could not renew theirs either."""
        lists = self.consumer.lists.copy()
        for name in self._believes_list_at.keys() - lists.keys():
            del self._believes_list_at[name]
        for name in lists.keys() - renewed:
            self._believes_list_at[name] = math.inf
        for name in renewed:
            if self._believes_list_at.get(name) == math.inf:
                self._believes_list_at[name] = now + self.consumer.leases.seconds

    def _visit_given_up(self, seen: list[tuple[str, Renewed]]) -> None:
        """Put back messages that the server gave to given-up consumers; forget consumers that are long gone."""
        places = [
            (name, other, score, float(score) + renewed.now_ms > _REMEMBER_MS)
            for name, renewed in seen
            for other, score in renewed.given_up.items()
            if name in self.consumer.lists
        ]
        lists = {name: keys.QueueKeys.of(name, self.consumer.db) for name, *_ in places}
        lengths = self._others.ask(
            self._client, [("LLEN", lists[name].in_flight(other)) for name, other, _, _ in places]
        )
        for (name, other, score, is_over), length in zip(places, lengths, strict=True):
            if length or is_over:
                self._recovery.add(name, other, Claim(score))

    def _look(self) -> None:
        consumer = self.consumer
        now = time.monotonic()
        prefix = keys.alive_channel("", consumer.db)
        try:
            channels = self._client.execute_command("PUBSUB CHANNELS", prefix + "*", **{NEVER_DECODE: True})
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                raise
            logger.info(
                "Cannot see which consumers are alive, so their messages come back only when their leases end: %s. "
                "Allow PUBSUB CHANNELS",
                exc,
            )
            self._may_look = False
            return
        alive = {channel.decode("utf-8", "replace").removeprefix(prefix) for channel in channels}
        self._presence.known |= self._others.strangers(self._client) | self._others.left_behind(self._client, now)
        seen = self._presence.look(
            alive, self._others.leases(self._client, self._presence.known - alive - {consumer.id}), now
        )
        for other, gone in seen.gone.items():
            for name, score in gone.leases.items():
                self._recovery.add(name, other, Claim(score, is_absent=True, has_ended=gone.has_ended))
        for other in seen.in_doubt:
            self._say(f"{_MISSING} {other}")
        self._look_at = min(now + self._seconds_until_turn(sorted(alive)), self._presence.look_at)

    def _seconds_until_turn(self, alive: list[str]) -> float:
        """Return the time until this consumer's turn to look, in seconds. Turns go by the server's clock."""
        since_epoch_s = -self._clock.seconds_until(0)
        if len(alive) < 2 or self.consumer.id not in alive or since_epoch_s == float("inf"):
            return _LONE_LOOK_S if len(alive) < 2 else self._turn_s
        round_s = len(alive) * self._turn_s
        until_s = (alive.index(self.consumer.id) * self._turn_s - since_epoch_s) % round_s
        return until_s if until_s > self._turn_s / 8 else until_s + round_s

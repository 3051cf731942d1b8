"""TransferLoop: moves messages to their broker lists when they are due. It knows Redis, but neither kombu nor Celery.

How it stays on time
    The keeper sleeps on its subscription until the earliest head is due. A notification of an earlier head wakes it,
    and so does every other event that the loop has to handle.

Why it forgets no message
    Notifications are hints. The loop looks at a queue when its subscription is confirmed. It looks at all queues every
    `interval_s` (5 s), in case a notification was lost. Every sixth time, it also reads which queues there are, and
    removes names from the registry that nobody needs. One command looks at all queues that seem empty; on Redis
    Cluster, where it takes one for each hash slot, the slots take turns.

One loop is punctual, the others back it up
    Every worker runs a loop, but `transfer.lua` records which one moved messages last. That punctual loop wakes when a
    message is due. The others wake a grace period (0.25 s) later, and the script lets them move messages only if the
    punctual loop has not. The punctual loop publishes a sign of life while it moves messages, and the others then
    postpone their look. So a message costs one script call, however many workers there are, and a killed worker costs
    one grace period.

States of the connection
    serving -> (connection lost: one WARNING) -> reconnecting, with a pause that grows up to 2 s -> (one INFO) ->
    serving. Messages wait in Redis meanwhile.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from logging import getLogger
from typing import Any

import redis
from redis import exceptions

from celery_delayq.queue import scripts
from celery_delayq.queue.clock import ServerClock
from celery_delayq.queue.connections import CONNECTION_ERRORS, Outage, new_id, passing_refusal
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.registry import Registry
from celery_delayq.queue.scripts import Transferred
from celery_delayq.queue.subscription import Heard, Subscription
from celery_delayq.transfer.failover_log import FailoverLog
from celery_delayq.transfer.lead import WAKE_AT, Lead
from celery_delayq.transfer.served import Served, ServedQueues
from celery_delayq.transfer.settings import TransferSettings

logger = getLogger(__name__)

#: How long a loop waits at most for permission to begin, and how often it asks, in seconds.
LONGEST_DELAY_S, _DELAY_S = 10.0, 0.02

#: The registry is read at every sixth look, and at the next one if that fails. Registered queues are also announced;
#: this covers lost announcements.
_LOOKS_A_REGISTRY = 6

#: How soon a queue is tried again whose hash slot is moving, in seconds.
_MOVING_S = 0.25

#: How often a loop does its chores, and how much time it must have for them, in seconds. If it never has, it does them
#: nevertheless after twice that time.
CHORES_S, _CHORES_TAKE_S = 10.0, 0.05

#: A wait on a socket is exact to a millisecond, a sleep to some microseconds. So the loop sleeps for the last bit.
_SLEEP_BELOW_S = 0.0015


class TransferLoop:
    """Transfers the due messages of a changing set of delayed queues: a duty of a keeper.

    `stop()` and `wake()` may be called from any thread or signal handler, any number of times; in a forked child they
    do nothing. A stopped loop resigns, so that others take over at once.

    Args:
        keeper: transfers, from `start()` on.
        queues: returns the names of the broker lists to transfer besides the registered ones; called by the
            keeper's thread. Call `wake()` when its answer changes.
        keyprefix: kombu's `global_keyprefix`, for the registry.
        settings: see `TransferSettings`.
        on_pass: called after each script call with the queue and the script's result; for tests and metrics.
        id: the loop's id in `delayq:transfer:{Q}`; readable and unique.
        may_begin: returns whether the loop may begin. It is asked until it returns true, for at most
            `LONGEST_DELAY_S`.
        serves: returns whether a list is this loop's server's; on Redis Cluster, other nodes have the other lists.
        failover_log: says what a failover lost.
        registry: which queues there are; by default, the loop reads that with its own client.
        slot_of: returns the hash slot of a key, if keys of several slots cannot be in one command.
        chores: called every `CHORES_S`, and at the end, with the loop's client and `serves`: for what needs a
            connection, and can wait until the loop has nothing else to do. It should take some ms at most, and raise
            nothing but errors of the connection.

    Attributes:
        outage: whether the loop is interrupted.
        is_stopping: whether the loop ends, or has ended.
    """

    def __init__(
        self,
        keeper: Keeper,
        queues: Callable[[], Iterable[str]] = tuple,
        *,
        keyprefix: str = "",
        settings: TransferSettings | None = None,
        on_pass: Callable[[DelayedQueue, Transferred], None] | None = None,
        id: str | None = None,
        may_begin: Callable[[], bool] = lambda: True,
        failover_log: FailoverLog | None = None,
        serves: Callable[[str], bool] = lambda name: True,
        registry: Registry | None = None,
        slot_of: Callable[[str], int] = lambda key: 0,
        chores: Callable[[redis.Redis, Callable[[str], bool]], None] = lambda client, serves: None,
    ) -> None:
        self.outage = Outage(logger, "Transfer of delayed messages", "Messages wait in Redis")
        self.is_stopping = False
        self.id = id or new_id()
        self.settings = settings or TransferSettings()
        self._keeper = keeper
        self._queues = queues
        self._on_pass = on_pass
        self._may_begin = may_begin
        self._failover_log = failover_log or FailoverLog(logger)
        self._serves = serves
        self._served = ServedQueues(keyprefix, registry, serves)
        self._slot_of = slot_of
        self._chores = chores
        self._next_chores = time.monotonic() + CHORES_S
        #: How long before they are due messages move; whoever receives them tells it when they came.
        self.lead = Lead(self.settings.lead_s)
        self._clock = ServerClock()
        #: Queue -> why the server refuses it: logged once, also if the loop connects again meanwhile.
        self._refused: dict[str, str] = {}
        self._is_woken = False
        self._has_begun = False
        #: When it begins even if it may not (monotonic).
        self._begins_at = 0.0
        # What belongs to one connection.
        self._client: Any = None
        self._subscription: Subscription | None = None
        self._is_listening = False
        self._next_look = 0.0
        #: The number of looks since the loop connected.
        self._looks = 0

    # -- called by other threads

    def start(self) -> None:
        """Let the keeper transfer; does nothing if it already does."""
        if not self.is_alive():
            self._begins_at = time.monotonic() + LONGEST_DELAY_S
            self._keeper.add(self, is_punctual=True)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop and wait at most `timeout_s` seconds."""
        self.is_stopping = True
        self._keeper.end(self, timeout_s)

    def is_alive(self) -> bool:
        """Return whether the loop was started and has not ended."""
        return self._keeper.has(self)

    def wake(self) -> None:
        """Make the loop ask `queues` again now."""
        self._is_woken = True
        self._keeper.wake()

    def seconds_until_past(self, server_ms: float) -> float:
        """Return the time until the server's clock certainly shows a transferred message's due time, in seconds.

        Negative if it already does; minus infinity if the server's clock was never seen. A transferred message is early
        by the longest lead at most.
        """
        return self._clock.seconds_until_past(server_ms, self.lead.most_s)

    # -- in the thread of the keeper, see `Duty`

    @property
    def is_over(self) -> bool:
        """Whether the loop ends."""
        return self.is_stopping

    def connected(self, client: redis.Redis) -> None:
        """Begin anew with a client."""
        self._client = client
        self._looks = 0
        self._failover_log.read(client)

    def subscribed(self, subscription: Subscription) -> None:
        """Listen, as soon as it may begin."""
        self._subscription = subscription

    def disconnected(self) -> None:
        """Forget what belongs to the connection."""
        self._client = self._subscription = None
        self._is_listening = False

    def end(self) -> None:
        """Resign, and do the last chores, if there is a connection."""
        client = self._client
        if client is None:
            return
        try:
            for served in self._served if self._is_listening else ():
                if served.punctual == self.id:
                    served.queue.resign(self.id)
        finally:
            self._chores(client, self._serves)
            if self._is_listening:
                self._served.disconnect()
            self.disconnected()

    def work(self, until: float) -> float:
        """Transfer what is due, and look whether there is more."""
        if not self._is_listening:
            if not self._may_begin_now():
                return time.monotonic() + _DELAY_S
            # The first look follows the confirmation: queues that are registered later will be announced.
            self._next_look = time.monotonic() + self.settings.interval_s
            assert self._subscription is not None
            self._served.connect(self._client, self._subscription)
            self._is_listening = True
        # The transfer follows this sleep directly, without even a look for messages.
        wait_s = self._seconds_until_next()
        if 0 < wait_s <= _SLEEP_BELOW_S:
            time.sleep(wait_s)
        for served in self._served:
            if self._is_due(served) and not self.is_stopping:
                self._transfer(served)
        if self._looks:
            self.outage.ends()
        if self._is_woken or time.monotonic() >= self._next_look:
            self._is_woken = False
            self._look()
        if time.monotonic() >= self._failover_log.next_at:
            self._failover_log.read(self._client)
        if self._has_time_for_chores():
            self._next_chores = time.monotonic() + CHORES_S
            self._chores(self._client, self._serves)
        return time.monotonic() + self._seconds_until_next() - _SLEEP_BELOW_S

    def _may_begin_now(self) -> bool:
        self._has_begun = self._has_begun or self._may_begin() or time.monotonic() >= self._begins_at
        return self._has_begun

    def _is_due(self, served: Served) -> bool:
        due = served.wake_at_ms
        return (due is not None and self._clock.seconds_until(due) <= 0) or time.monotonic() >= served.retry_at

    def _has_time_for_chores(self) -> bool:
        late_s = time.monotonic() - self._next_chores
        return late_s >= CHORES_S or (late_s >= 0 and self._seconds_until_work() >= _CHORES_TAKE_S)

    def _seconds_until_next(self) -> float:
        until_chores_s = self._next_chores - time.monotonic()
        if until_chores_s <= 0:  # there was no time for them
            until_chores_s += CHORES_S
        return min(self._seconds_until_work(), until_chores_s)

    def _seconds_until_work(self) -> float:
        wakes = [served.wake_at_ms for served in self._served if served.wake_at_ms is not None]
        retry_at = min((served.retry_at for served in self._served), default=math.inf)
        wait_s = min(
            min(self._next_look, self._failover_log.next_at, retry_at) - time.monotonic(), self.settings.interval_s
        )
        if wakes:
            wait_s = min(wait_s, self._clock.seconds_until(min(wakes)))
        return wait_s

    # -- notifications

    def heard(self, heard: Heard) -> None:
        """Learn of a queue, a head, or what the punctual loop has moved; look when a subscription begins."""
        channel, data = heard.channel, heard.said
        served = self._served.of_channel(channel)
        if channel == self._served.channel:
            if data is None:
                self._look()
            elif data:
                self._served.announced(data)
        elif served is None:
            return
        elif channel != served.queue.keys.channel:
            self._on_sign_of_life(served, data or "")
        elif data is None:
            # Nobody announces messages that became due before the subscription.
            served.wake_at_ms = 0
        else:
            self._on_head(served, data)

    def _on_head(self, served: Served, data: str) -> None:
        try:
            due_ms = int(float(data))
        except (ValueError, OverflowError):
            return
        # All databases share the channel: believe a message only if it makes the loop look earlier.
        self._failover_log.hurry()
        if not served.is_to_be_looked_at and (served.head_due_ms is None or due_ms < served.head_due_ms):
            served.head_due_ms = due_ms
            self._arm(served, last_sign_ms=0)

    def _on_sign_of_life(self, served: Served, data: str) -> None:
        try:
            last, head, punctual = data.split(":", 2)
            last_sign_ms, head_due_ms = int(last), scripts.score_to_ms(head)
        except ValueError:
            return
        if punctual == self.id or served.is_to_be_looked_at or not 0 <= last_sign_ms < 2**53:
            return
        self._failover_log.hurry()
        served.punctual = punctual
        served.head_due_ms = head_due_ms
        self._arm(served, last_sign_ms=last_sign_ms)

    # -- looking and transferring

    def _look(self) -> None:
        """Find out which queues there are, and look at those that may hold a message."""
        consumed = set(self._queues())
        if self._looks % _LOOKS_A_REGISTRY == 0 or not self._served.is_read:
            self._served.read()
        self._looks += 1
        self._served.update(consumed)
        names = {served.queue.name for served in self._served}
        self._refused = {name: error for name, error in self._refused.items() if name in names}
        for part in self._served.empty(self._slot_of, self._looks, self._refused):
            if self._any_exists(part):
                for served in part:
                    served.wake_at_ms = 0
        for served in self._served:
            if served.head_due_ms is not None or served.queue.name in self._refused:
                served.wake_at_ms = 0
        self._next_look = time.monotonic() + self.settings.interval_s * random.uniform(0.8, 1)

    def _any_exists(self, part: list[Served]) -> bool:
        """Return whether a message may wait in one of these queues."""
        try:
            return bool(self._client.exists(*(served.queue.keys.timeout_set for served in part)))
        except exceptions.TryAgainError:  # half of them are at another node
            return True

    def _transfer(self, served: Served) -> None:
        queue = served.queue
        served.retry_at = math.inf
        lead_ms = self._lead_ms(served)
        sent = time.monotonic()
        planned_at = self._planned_at(served, sent)
        try:
            done = queue.transfer(
                self.settings.batch_size,
                transferrer=self.id,
                grace=self.settings.grace_ms / 1000,
                lead=lead_ms / 1000,
            )
        except CONNECTION_ERRORS:
            raise
        except exceptions.ResponseError as exc:
            if isinstance(exc, exceptions.TryAgainError):  # its slot is on its way to another node
                served.retry_at = time.monotonic() + _MOVING_S
            elif passing_refusal(exc):  # of all queues
                raise
            elif str(exc) != self._refused.get(queue.name):
                # A queue that the server refuses (wrong type, no permission, no memory) must not stop the others.
                logger.error("Cannot transfer delayed messages of %r: %s", queue.name, exc)
            self._refused[queue.name] = str(exc)
            served.head_due_ms = served.wake_at_ms = None
            return
        self._clock.observe(round(done.now.timestamp() * 1_000_000), sent, time.monotonic())
        if done.moved and served.has_lead and served.head_due_ms is not None:
            self.lead.moved(served.head_due_ms, done.now.timestamp() * 1000 + lead_ms, planned_at)
        self._refused.pop(queue.name, None)
        served.head_due_ms = None if done.head_due is None else round(done.head_due.timestamp() * 1000)
        if done.punctual != served.punctual:
            logger.debug("The punctual loop of delayed queue %r is now %s", queue.name, done.punctual)
        served.punctual = done.punctual
        self._arm(served, last_sign_ms=round(done.last_sign.timestamp() * 1000))
        if done.moved:
            self._failover_log.hurry()
            logger.debug("Transferred %d to %r", done.moved, queue.name)
        if done.dead:
            logger.error(
                "Entries of delayed queue %r could not be decoded, and became dead letters in the list %r: %d",
                queue.name,
                queue.keys.dead,
                done.dead,
            )
        if self._on_pass is not None:
            self._on_pass(queue, done)

    def _lead_ms(self, served: Served) -> int:
        return round(self.lead.seconds * 1000) if served.has_lead else 0

    def _planned_at(self, served: Served, now: float) -> float:
        """Return when this transfer should have begun, on the monotonic clock."""
        if served.wake_at_ms is None or served.is_to_be_looked_at:
            return now
        return max(served.armed_at, now + min(0.0, self._clock.seconds_until(served.wake_at_ms)))

    def _arm(self, served: Served, last_sign_ms: int) -> None:
        """Set the time of the next transfer: when the head is due, or later if another loop is punctual."""
        due_ms = served.head_due_ms
        served.armed_at = time.monotonic()
        if due_ms is None or served.punctual in ("", self.id):
            served.wake_at_ms = None if due_ms is None else due_ms - self._lead_ms(served) * WAKE_AT
            return
        grace_ms = self.settings.grace_ms * random.uniform(1, 1.5)
        served.wake_at_ms = max(due_ms, last_sign_ms) + grace_ms

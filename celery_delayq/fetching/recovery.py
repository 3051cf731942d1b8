"""Recovery: puts messages of dead consumers back to their lists, or sets them aside as dead letters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from logging import getLogger

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.basics.text import plural
from celery_delayq.fetching.held import DEAD_LETTERS, RECOVERED, Redelivery
from celery_delayq.fetching.lease import Leases
from celery_delayq.queue import keys, scripts
from celery_delayq.queue.connections import CONNECTION_ERRORS, is_elsewhere, refusals
from celery_delayq.queue.dead_letter import reason_of
from celery_delayq.queue.scripts import MAX_PUT_BACK

logger = getLogger(__name__)

#: How many messages a step begins with, and how long one may take, in seconds: large ones come in smaller steps.
_FIRST_STEP, _STEP_S = 10, 0.005

#: Why messages were taken from a consumer: its process has ended; it was absent and silent; its lease has ended.
REASONS = ("process-ended", "absent", "lease-ended")


@dataclass
class Claim:
    """The reason to take messages of one list from a consumer.

    Attributes:
        score: its lease, as seen. If the lease has changed since, the consumer lives, and nothing is taken.
        is_absent: whether the consumer is gone although its lease has not ended.
        has_ended: whether its process is known to have ended.
        moved: how many messages have been put back so far.
    """

    score: bytes
    is_absent: bool = False
    has_ended: bool = False
    moved: int = 0

    @property
    def reason(self) -> str:
        """Why the messages are taken, one of `REASONS`."""
        return REASONS[0 if self.has_ended else 1 if self.is_absent else 2]


class Recovery:
    """The claims of one watchdog. It belongs to the watchdog's thread.

    Args:
        leases: leases of the watchdog's consumer. Messages of other lists are left to other watchdogs.
        redelivery: see `Redelivery`.
        db: the database of the lists.
    """

    def __init__(self, leases: Leases, redelivery: Redelivery, db: int) -> None:
        self._leases = leases
        self._redelivery = redelivery
        self._db = db
        #: (list, consumer) -> claim.
        self._claims: dict[tuple[str, str], Claim] = {}
        #: List -> the server's last error when messages were put back there.
        self._refused: dict[str, str] = {}
        #: How many messages the next step puts back at most.
        self._most = _FIRST_STEP

    @property
    def is_needed(self) -> bool:
        """Whether there is something to recover."""
        return bool(self._claims)

    def add(self, name: str, consumer: str, claim: Claim) -> None:
        """Claim the messages of a list that a consumer has in flight."""
        self._claims[name, consumer] = claim

    def forget(self) -> None:
        """Drop all claims."""
        self._claims.clear()

    def go_on(self, client: redis.Redis) -> None:
        """Put some messages back, if there are any; the next call continues.

        Raises:
            redis.ConnectionError: the server is away, or is a replica now.
        """
        if not self._claims:
            return
        began_at = time.monotonic()
        name, consumer = next(iter(self._claims))
        elsewhere = is_elsewhere(client, keys.QueueKeys.of(name, self._db).queue)
        try:
            self._recover(client, name, consumer, self._claims.pop((name, consumer)))
            self._refused.pop(name, None)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            if isinstance(exc, CONNECTION_ERRORS) and not elsewhere:
                raise
            if self._refused.get(name) != str(exc) and not refusals.note(exc, logger):
                logger.error("Cannot put back messages of %r from consumer %s, which is gone: %s", name, consumer, exc)
            self._refused[name] = str(exc)
        is_quick = time.monotonic() - began_at < _STEP_S
        self._most = min(2 * self._most, MAX_PUT_BACK) if is_quick else max(1, self._most // 2)

    def _recover(self, client: redis.Redis, name: str, consumer: str, claim: Claim) -> None:
        """Put messages back to the front of their list, in their old order: some, with one script call."""
        queue_keys = self._leases.lists.get(name)
        if queue_keys is None:
            return
        found: list[bytes] = client.execute_command(
            "LRANGE", queue_keys.in_flight(consumer), 0, self._most - 1, **{NEVER_DECODE: True}
        )
        messages = [(raw, *self._redelivery.recover(raw)) for raw in found]
        done = scripts.recover(
            queue_keys,
            consumer=consumer,
            score=claim.score,
            gone=claim.is_absent,
            alive_channel=keys.alive_channel(consumer, self._db) if claim.has_ended else "",
            messages=messages,
            holders=[self._redelivery.holder_of(raw) if is_dead else None for raw, _letter, is_dead in messages],
        ).run(client)
        moved = [message for message, was_moved in zip(messages, done.moved, strict=False) if was_moved]
        dead = [letter for _, letter, is_dead in moved if is_dead]
        if dead:
            for letter in dead:
                self._redelivery.on_count(name, DEAD_LETTERS + reason_of(letter), 1)
            self._tell_dead(name, dead)
        if len(moved) > len(dead):
            self._redelivery.on_count(name, RECOVERED + claim.reason, len(moved) - len(dead))
        claim.moved += len(moved) - len(dead)
        if any(done.moved) and done.left:
            claim.score = done.score
            self.add(name, consumer, claim)
        elif claim.moved:
            logger.warning(
                "%s of %r went back to the queue: consumer %s is gone", plural(claim.moved, "message"), name, consumer
            )

    def _tell_dead(self, name: str, dead: list[bytes]) -> None:
        logger.error(
            "%s in the list %r: unreadable, or its worker was killed too often while it ran. "
            "`delayq dead list` with the name of the queue shows more",
            plural(len(dead), f"message of {name!r} became a dead letter", f"messages of {name!r} became dead letters"),
            keys.QueueKeys.of(name).dead,
        )
        for letter in dead:
            self._redelivery.on_dead(name, letter)

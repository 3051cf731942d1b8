"""Leases: as long as a consumer renews its leases, it owns the messages that it has fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from logging import getLogger
from types import MappingProxyType
from typing import NoReturn

import redis

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.basics.text import plural
from celery_delayq.queue import scripts
from celery_delayq.queue.connections import CONNECTION_ERRORS, is_elsewhere, refusals
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import Renewed

logger = getLogger(__name__)


class Leases:
    """The leases of one consumer, one on each list.

    The consuming thread and the watchdog use it at the same time, each with a client of its own.

    Args:
        consumer: its id.
        seconds: how long the consumer may be silent before others take its messages.
        db: the database of the lists.
        on_lost: called once, when others have given the consumer up; returns how many messages it held.
        on_forgotten: called when the server did not know the consumer and it has joined again, with a client and the
            names of the lists. May raise `LeaseLost`.
        slot_of: returns the hash slot of a key, if keys of several slots cannot be in one command.

    Attributes:
        lists: name -> keys of each list with a lease; a view.
    """

    def __init__(
        self,
        consumer: str,
        seconds: float,
        db: int,
        on_lost: Callable[[], int],
        on_forgotten: Callable[[redis.Redis, Sequence[str]], None],
        slot_of: Callable[[str], int] = lambda key: 0,
    ) -> None:
        self.seconds = seconds
        self._slot_of = slot_of
        self._lists: dict[str, QueueKeys] = {}
        self.lists = MappingProxyType(self._lists)
        #: The leases certainly last until this time, on the monotonic clock.
        self.until = 0.0
        self._consumer = consumer
        self._db = db
        self._on_lost = on_lost
        self._on_forgotten = on_forgotten
        self._loss = ""
        #: List -> why its lease was not renewed: the error of the server, or that it is away.
        self._refused: dict[str, str] = {}

    @property
    def is_lost(self) -> bool:
        """Whether others have given the consumer up; it is never used again."""
        return bool(self._loss)

    def keys_of(self, name: str) -> QueueKeys:
        """Return the keys of a list, whether or not there is a lease on it."""
        return self._lists.get(name) or QueueKeys.of(name, self._db)

    def take(self, client: redis.Redis, name: str) -> None:
        """Take a lease on a list; does nothing if there already is one.

        Raises:
            LeaseLost: others have given the consumer up.
        """
        if name in self._lists:
            return
        keys, sent = QueueKeys.of(name, self._db), time.monotonic()
        self._begin(client, keys)
        if not self._lists:
            self.until = sent + self.seconds
        self._lists[name] = keys

    def _begin(self, client: redis.Redis, keys: QueueKeys) -> None:
        (done,) = self._renew(client, [keys], join=True)
        if isinstance(done, Exception):
            raise done
        if not done.renewed:
            self.lose()

    def renew(self, client: redis.Redis) -> list[tuple[str, Renewed]]:
        """Renew all leases; returns each list's name with the reply of the server. One that is refused is logged.

        So is one whose slot has moved to another node of a cluster, while that node is away. If the server does not
        know the consumer, because its data was deleted, the consumer joins again.

        Raises:
            LeaseLost: others have given the consumer up, or messages that it holds were deleted.
            redis.ConnectionError: the server is away.
            redis.ResponseError: the server refused all of them.
        """
        sent = time.monotonic()
        seen: list[tuple[str, Renewed]] = []
        forgotten: list[str] = []
        refused: dict[str, Exception] = {}
        for part in self._together(client):
            for (name, keys), done in zip(part, self._renew_each(client, part), strict=True):
                if isinstance(done, Exception):
                    refused[name] = done
                    continue
                if not done.renewed and self._lists.get(name) is keys:  # the list was not left in the meantime
                    if done.is_known:
                        self.lose()
                    self._begin(client, keys)
                    forgotten.append(name)
                seen.append((name, done))
        if refused and not seen:
            raise next(iter(refused.values()))
        self._note(refused)
        self.until = sent + self.seconds
        if forgotten:
            self._on_forgotten(client, forgotten)
        return seen

    def _renew_each(self, client: redis.Redis, part: list[tuple[str, QueueKeys]]) -> Sequence[Renewed | Exception]:
        """Renew leases with one command, or one by one if the server refuses that for one of them.

        While the slot of several lists moves, a node of a cluster serves each of them, but not all together.
        """
        lists = [keys for _, keys in part]
        elsewhere = is_elsewhere(client, lists[0].consumers)
        try:
            return self._renew(client, lists, join=False)
        except CONNECTION_ERRORS as exc:
            if not elsewhere:
                raise
            return [exc] * len(lists)
        except redis.ResponseError as exc:
            if len(lists) == 1:
                return [exc]
        return [done for one in part for done in self._renew_each(client, [one])]

    def _note(self, refused: Mapping[str, Exception]) -> None:
        # A server that is away says so in many ways.
        why = {name: "away" if isinstance(exc, CONNECTION_ERRORS) else str(exc) for name, exc in refused.items()}
        for name, exc in refused.items():
            if self._refused.get(name) != why[name] and not refusals.note(exc, logger):
                logger.error(
                    "Cannot renew the lease on %r: %s. Others may take its messages", name, str(exc).rstrip(".")
                )
        self._refused = why

    def _together(self, client: redis.Redis) -> Iterator[list[tuple[str, QueueKeys]]]:
        """Yield the leases that one command can renew: an idle worker should send few.

        Those elsewhere come first: they have to be renewed also if the own server is away, which ends the renewal.
        """
        slots: dict[int, list[tuple[str, QueueKeys]]] = {}
        for name, keys in list(self._lists.items()):
            slots.setdefault(self._slot_of(keys.consumers), []).append((name, keys))
        for part in sorted(slots.values(), key=lambda part: not is_elsewhere(client, part[0][1].consumers)):
            for first in range(0, len(part), scripts.MAX_RENEW):
                yield part[first : first + scripts.MAX_RENEW]

    def check(self, client: redis.Redis) -> None:
        """Make sure that the leases are valid; asks the server only if they should have ended.

        They count as valid if the server refuses for now to renew them: others could not take the messages either.

        Raises:
            LeaseLost: others have given the consumer up.
        """
        if self.is_lost:
            self.lose()
        if self._lists and time.monotonic() > self.until:
            try:
                self.renew(client)
            except redis.ResponseError as exc:
                if isinstance(exc, CONNECTION_ERRORS) or not refusals.note(exc, logger):
                    raise
                # What nobody may write, nobody has taken over.

    def end(self, client: redis.Redis, keep: Collection[str] = ()) -> bool:
        """End all leases, except those on lists in `keep` and on lists with messages in flight.

        A lease elsewhere stays while that node is away, see `renew`.

        Returns:
            Whether no lease is left.
        """
        for name, keys in list(self._lists.items()):
            if name in keep:
                continue
            # Remove it first: otherwise the watchdog would not find the lease, and take the consumer for lost.
            self._lists.pop(name, None)
            has_left, elsewhere = False, is_elsewhere(client, keys.consumers)
            try:
                has_left = scripts.leave(keys, consumer=self._consumer).run(client)
            except CONNECTION_ERRORS as exc:
                if not elsewhere:
                    raise
                logger.debug("Cannot end the lease on %r: %s", name, exc)
            finally:
                if not has_left:
                    self._lists[name] = keys
        return not self._lists

    def lose(self) -> NoReturn:
        """Mark the consumer as given up by others.

        Raises:
            LeaseLost: always.
        """
        if not self._loss:
            count = self._on_lost()
            self._loss = (
                f"consumer {self._consumer} lost its leases of {self.seconds:g} s: it was silent for too long, and "
                f"others took its messages ({plural(count, 'message')} held here cannot be acknowledged)"
            )
        raise LeaseLost(self._loss)

    def _renew(self, client: redis.Redis, lists: list[QueueKeys], *, join: bool) -> list[Renewed | redis.ResponseError]:
        return scripts.renew(lists, consumer=self._consumer, lease_ms=round(self.seconds * 1000), join=join).run(client)

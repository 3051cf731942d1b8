"""Presence: which other consumers are alive, and which are gone.

Two signs together show that a consumer is gone. First, nobody is subscribed to its channel, at any look, for longer
than a living consumer needs to reconnect. Second, it has renewed no lease in that time; a living consumer renews them
as soon as it is connected again.

If this process can check the other process, that decides instead. A process that has ended never comes back. A process
that runs keeps its lease, even if its connections are lost. It keeps its messages even if its lease has ended, as long
as it has its channel: a task may hold the GIL for so long that nothing can be renewed. A suspended process loses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from celery_delayq.fetching import process

#: How long a consumer whose process has ended must be absent before it is given up, in seconds. Until then, the server
#: may not have noticed that its other connections are closed, and may still give it messages.
_CLOSING_S = 1.0

#: How long to wait for an answer about a consumer whose lease has ended, and how long it counts, in seconds.
ANSWER_S, _COUNTS_S = 1.0, 30.0

#: The leases of a consumer: broker list -> score, as stored.
Leases = Mapping[str, bytes]


@dataclass
class _Absence:
    """An absent, silent consumer: since when (monotonic), its leases, and how long to wait before it is given up."""

    since: float
    leases: Leases
    patience_s: float = math.inf

    def has_changed(self, leases: Leases) -> bool:
        """Return whether it has renewed a lease, or left a list."""
        return any(leases.get(name) != score for name, score in self.leases.items())


class Gone(NamedTuple):
    """A consumer to give up: its leases, and whether its process is known to have ended."""

    leases: Leases
    has_ended: bool


class Look(NamedTuple):
    """The result of one look.

    Attributes:
        gone: consumers to give up.
        in_doubt: newly absent consumers. A watchdog in the same place as their process knows whether it runs.
    """

    gone: dict[str, Gone]
    in_doubt: set[str]


class Presence:
    """What one watchdog has seen of other consumers since it connected. It does not use Redis.

    Each connection starts with a new one: after an outage, all others are absent.

    Args:
        patience_s: how long a consumer must be absent and silent, in seconds, if nobody can check its process.
        is_running: see `process.is_running`; tests pass their own.
        is_at_work: see `process.is_at_work`.
    """

    def __init__(
        self,
        patience_s: float,
        is_running: Callable[[str], bool | None] = process.is_running,
        is_at_work: Callable[[str], bool | None] = process.is_at_work,
    ) -> None:
        self._patience_s = patience_s
        self._is_running = is_running
        self._is_at_work = is_at_work
        #: Ids of the consumers that are, or should be, alive.
        self.known: set[str] = set()
        self._absences: dict[str, _Absence] = {}
        #: Consumer -> when somebody last asked for it because its lease has ended, and said that it is at work.
        self._asked: dict[str, float] = {}
        self._at_work: dict[str, float] = {}

    def look(self, alive: set[str], leases: Mapping[str, Leases], now: float) -> Look:
        """Record which consumers are present, and find out which are gone.

        Args:
            alive: consumers that are subscribed to their channels.
            leases: leases of the known consumers that are not alive. A consumer without a lease has left in order.
            now: the time, on the monotonic clock.
        """
        self.known = alive | leases.keys()
        self._absences = {other: absence for other, absence in self._absences.items() if other in leases}
        gone: dict[str, Gone] = {}
        in_doubt = set()
        for other, found in leases.items():
            absence = self._absences.get(other)
            if is_new := absence is None or absence.has_changed(found):
                absence = self._absences[other] = _Absence(now, found)
            running = self._is_running(other)
            absence.patience_s = {True: math.inf, False: _CLOSING_S, None: self._patience_s}[running]
            if now - absence.since >= absence.patience_s:
                gone[other] = Gone(found, running is False)
                del self._absences[other]
            elif is_new and running is None:
                in_doubt.add(other)
        return Look(gone, in_doubt)

    def judge(self, other: str, now: float) -> Literal["take", "keep", "ask", "wait"]:
        """Decide about the messages of a consumer whose lease has ended: whether it keeps them, or others take them.

        If nobody here knows, a watchdog in the same place as its process is to be asked, and its answer waited for.
        """
        at_work = self._is_at_work(other)
        if at_work is not None:
            return "keep" if at_work else "take"
        if now - self._at_work.get(other, -math.inf) < _COUNTS_S:
            return "keep"
        asked = self._asked.get(other, -math.inf)
        if now - asked >= _COUNTS_S:
            self._asked = {it: at for it, at in self._asked.items() if now - at < _COUNTS_S}
            self._asked[other] = now
            return "ask"
        return "take" if now - asked >= ANSWER_S else "wait"

    def vouch(self, other: str, now: float, *, is_at_work: bool = True) -> None:
        """Record that the process of a consumer runs, because another watchdog said so; it may be suspended."""
        self._absences.pop(other, None)
        if is_at_work:
            self._at_work[other] = now

    @property
    def look_at(self) -> float:
        """When the next consumer may count as gone, on the monotonic clock; infinite if all are present."""
        return min((it.since + it.patience_s for it in self._absences.values()), default=math.inf)

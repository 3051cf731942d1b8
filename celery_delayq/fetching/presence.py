"""Presence: which other consumers are alive, and which are gone.

Two signs together show that a consumer is gone. First, nobody is subscribed to its channel, at any look, for longer
than a living consumer needs to reconnect. Second, it has renewed no lease in that time; a living consumer renews them
as soon as it is connected again.

If this process can check the other process, that decides instead. A process that has ended never comes back. A process
that runs keeps its lease, even if its connections are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from celery_delayq.fetching import process

#: How long a consumer whose process has ended must be absent before it is given up, in seconds. Until then, the server
#: may not have noticed that its other connections are closed, and may still give it messages.
_CLOSING_S = 1.0

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
    """

    def __init__(self, patience_s: float, is_running: Callable[[str], bool | None] = process.is_running) -> None:
        self._patience_s = patience_s
        self._is_running = is_running
        #: Ids of the consumers that are, or should be, alive.
        self.known: set[str] = set()
        self._absences: dict[str, _Absence] = {}

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

    def vouch(self, other: str) -> None:
        """Record that the process of a consumer runs, because another watchdog said so."""
        self._absences.pop(other, None)

    @property
    def look_at(self) -> float:
        """When the next consumer may count as gone, on the monotonic clock; infinite if all are present."""
        return min((it.since + it.patience_s for it in self._absences.values()), default=math.inf)

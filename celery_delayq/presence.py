"""Presence: which of the other consumers are there, and which are gone.

Two signs say that a consumer is gone: nobody is subscribed to its channel, at any look, for longer than a living one
needs to connect again; and it has renewed no lease meanwhile, which a living one does at once when it is connected
again. Where its process can be asked for, that decides instead: of one that has ended nothing comes back, and one that
runs keeps its lease, whatever became of its connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from celery_delayq import process

#: How long a consumer whose process has ended is absent before it is given up, in seconds: the server may still learn
#: that its other connections are closed, and give it messages until then.
_CLOSING_S = 1.0

#: The leases of a consumer: broker list -> score, as stored.
Leases = Mapping[str, bytes]


@dataclass
class _Absence:
    """Since when a consumer is absent and silent (monotonic), its leases, and for how long that means nothing."""

    since: float
    leases: Leases
    patience_s: float = math.inf

    def has_changed(self, leases: Leases) -> bool:
        """Return whether it has renewed a lease, or left a list."""
        return any(leases.get(name) != score for name, score in self.leases.items())


class Gone(NamedTuple):
    """A consumer that is to be given up: its leases, and whether its process is known to have ended."""

    leases: Leases
    has_ended: bool


class Look(NamedTuple):
    """What one look has shown.

    Attributes:
        gone: who is to be given up.
        in_doubt: those that are newly absent; a watchdog beside them knows whether their processes run.
    """

    gone: dict[str, Gone]
    in_doubt: set[str]


class Presence:
    """What one watchdog has seen of others since it connected. It knows no Redis.

    It begins anew with each connection: after an outage, all others are absent.

    Args:
        patience_s: for how long a consumer has to be absent and silent, in seconds, if nobody can ask for its process.
        is_running: see `process.is_running`; tests have their own.
    """

    def __init__(self, patience_s: float, is_running: Callable[[str], bool | None] = process.is_running) -> None:
        self._patience_s = patience_s
        self._is_running = is_running
        #: Ids of consumers that are, or should be, there.
        self.known: set[str] = set()
        self._absences: dict[str, _Absence] = {}

    def look(self, alive: set[str], leases: Mapping[str, Leases], now: float) -> Look:
        """Take notice of who is there, and find out who is gone.

        Args:
            alive: consumers that are subscribed to their channels.
            leases: of those that are known and not alive. One without a lease has left in order.
            now: on the monotonic clock.
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
        """Take notice that the process of a consumer runs, as another watchdog knows."""
        self._absences.pop(other, None)

    @property
    def look_at(self) -> float:
        """When somebody may be gone for sure, on the monotonic clock; infinite if all are there."""
        return min((it.since + it.patience_s for it in self._absences.values()), default=math.inf)

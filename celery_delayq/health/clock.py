"""How far the clocks of this machine and of a server are apart."""

from __future__ import annotations

import time
from collections.abc import Iterator

from celery_delayq.health.finding import Finding, error, ok, warning
from celery_delayq.health.servers import Server

#: How often the server is asked; the fastest answer counts.
_QUESTIONS = 3

#: Differences from which on there is a warning, and an error, in seconds.
_NOTICEABLE_S, _WRONG_S = 0.5, 30.0


def check_clock(server: Server) -> Iterator[Finding]:
    """Yield how far the clock of this machine is ahead of the server's.

    An eta that somebody computes from a countdown is a time by their own clock; it is over by the server's.
    """
    error_s, ahead_s = min(_ask(server) for _ in range(_QUESTIONS))
    apart_s = max(0.0, abs(ahead_s) - error_s)
    if apart_s < _NOTICEABLE_S:
        yield ok(f"The clocks of this machine and of {server.software} agree.")
        return
    side, effect = ("ahead of", "late") if ahead_s > 0 else ("behind", "early")
    message = (
        f"The clock of this machine is {apart_s:.1f} s {side} that of {server.software}: countdowns set on this "
        f"machine end that much too {effect}."
    )
    yield (error if apart_s >= _WRONG_S else warning)(message, "Let NTP set both clocks.")


def _ask(server: Server) -> tuple[float, float]:
    """Return how inexact the answer is, and how far our clock is ahead, in seconds."""
    sent = time.time()
    seconds, microseconds = server.client.time()
    received = time.time()
    return (received - sent) / 2, (sent + received) / 2 - int(seconds) - int(microseconds) / 1_000_000

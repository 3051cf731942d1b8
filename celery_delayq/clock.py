"""ServerClock: the Redis server's time, estimated from the replies of scripts that tell it."""

from __future__ import annotations

import time
from collections.abc import Callable

#: How fast two clocks may drift apart, as a fraction: generous for quartz and NTP slewing.
_DRIFT = 0.0005


class ServerClock:
    """Maps the server's unix time to this process's monotonic clock.

    A reply that took long says little about when in between the server looked at its clock, so the estimate is only
    replaced by a sample that is at least as sharp as the old one has become, or that contradicts it (the server's
    clock was set). Used by one thread.

    Args:
        monotonic: this process's clock in seconds; tests pass their own.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._offset_s = float("inf")  # all times are past until the server has told its own
        self._error_s = float("inf")
        self._sampled_at = 0.0

    def observe(self, server_us: int, sent: float, received: float) -> float:
        """Take a sample: the server's unix time in microseconds, and the monotonic times around the call.

        Returns:
            By how many seconds the server's clock was set since the last sample, beyond doubt; negative if it was set
            back.
        """
        offset_s = server_us / 1_000_000 - (sent + received) / 2
        error_s = (received - sent) / 2
        known_error_s = self._error_s + (received - self._sampled_at) * _DRIFT
        step_s = offset_s - self._offset_s
        contradicts = abs(step_s) > error_s + known_error_s
        if contradicts or error_s <= known_error_s:
            self._offset_s, self._error_s, self._sampled_at = offset_s, error_s, received
        return step_s if contradicts else 0.0

    def seconds_until(self, server_ms: float) -> float:
        """Return how many seconds from now the server's clock shows `server_ms`; negative if it has.

        Minus infinity before the first sample: whoever waits for that time has a look instead.
        """
        return server_ms / 1000 - self._offset_s - self.monotonic()

    def seconds_until_past(self, server_ms: float, most_s: float) -> float:
        """Return the same, and longer by what a slow reply leaves in doubt, `most_s` seconds at most."""
        return self.seconds_until(server_ms) + min(self._error_s, most_s)

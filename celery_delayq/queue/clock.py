"""ServerClock: the Redis server's time, estimated from script replies that contain it."""

from __future__ import annotations

import time
from collections.abc import Callable

#: How fast two clocks may drift apart, as a fraction. This is generous for quartz and NTP slewing.
_DRIFT = 0.0005


class ServerClock:
    """Maps the server's unix time to this process's monotonic clock.

    A slow reply is inaccurate: the server may have read its clock at any moment in between. So a new sample replaces
    the estimate only if it is at least as accurate as the aged estimate, or if it contradicts it (somebody set the
    server's clock). For one thread.

    Args:
        monotonic: this process's clock in seconds; tests pass their own clock.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._offset_s = float("inf")  # all times count as past until the first sample
        self._error_s = float("inf")
        self._sampled_at = 0.0

    def observe(self, server_us: int, sent: float, received: float) -> float:
        """Add a sample: the server's unix time in microseconds, and the monotonic times around the call.

        Returns:
            The seconds by which somebody has certainly set the server's clock since the last sample; negative if it
            was set back.
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
        """Return the seconds until the server's clock shows `server_ms`; negative if that is past.

        Returns minus infinity before the first sample, so that a caller asks the server instead of waiting.
        """
        return server_ms / 1000 - self._offset_s - self.monotonic()

    def seconds_until_past(self, server_ms: float, most_s: float) -> float:
        """Return the same plus the uncertainty of a slow reply, which is limited to `most_s` seconds."""
        return self.seconds_until(server_ms) + min(self._error_s, most_s)

"""Histograms of lateness as fields of a HASH: a number for each bucket, and the sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache

#: Names of what is counted of messages that become due: how many moved, and two histograms.
TRANSFERRED, TRANSFER_LATENESS, START_LATENESS = "transferred", "transfer_lateness", "start_lateness"

#: Upper bounds of the buckets, in seconds. A tenth of a second late is seen; early is 0.
BOUNDS_S = (0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)

#: The end of a field's name for each bucket, and for the sum, in microseconds.
_BUCKETS, _SUM = (*(f"{bound:g}" for bound in BOUNDS_S), "inf"), "us"

#: A lateness above this is a mistake of a clock, or of whoever wrote the due time: it must not spoil the sum. A year.
_LONGEST_S = 366 * 86400.0


@cache
def _names(histogram: str) -> tuple[tuple[str, ...], str]:
    """Return the fields of all buckets, and that of the sum."""
    return tuple(f"{histogram}:{bucket}" for bucket in _BUCKETS), f"{histogram}:{_SUM}"


def fields_of(histogram: str, lateness_s: float) -> tuple[str, str, int]:
    """Return the fields of a bucket and of the sum, and what to add to the sum.

    Args:
        histogram: its name.
        lateness_s: negative if it was early.
    """
    lateness_s = min(max(0.0, lateness_s), _LONGEST_S)
    buckets, total = _names(histogram)
    return buckets[bisect_left(BOUNDS_S, lateness_s)], total, round(lateness_s * 1e6)


def read(histogram: str, totals: Mapping[str, int]) -> tuple[list[tuple[str, int]], float]:
    """Return the buckets as Prometheus wants them, each with those below it, and the sum in seconds."""
    _, total = _names(histogram)
    return read_buckets(histogram, totals), totals.get(total, 0) / 1e6


def read_buckets(histogram: str, totals: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the buckets as Prometheus wants them, each with those below it."""
    buckets: list[tuple[str, int]] = []
    number = 0
    names, _ = _names(histogram)
    for bound, name in zip((*map(str, map(float, BOUNDS_S)), "+Inf"), names, strict=True):
        number += totals.get(name, 0)
        buckets.append((bound, number))
    return buckets


def quantile(share: float, buckets: Sequence[int]) -> float | None:
    """Return a lateness in seconds that so large a share did not exceed; None if nothing was counted.

    It is interpolated within a bucket. Beyond the last bound, it is that bound.

    Source: Prometheus 3 `promql/quantile.go`, `BucketQuantile`, for buckets whose first bound is 0.

    Args:
        share: more than 0, and at most 1.
        buckets: the numbers of `read_buckets`.
    """
    if buckets[-1] <= 0:
        return None
    rank = share * buckets[-1]
    at = bisect_left(buckets, rank, 0, len(buckets) - 1)
    if at == len(buckets) - 1:
        return float(BOUNDS_S[-1])
    if at == 0:
        return 0.0
    low, high, below = BOUNDS_S[at - 1], BOUNDS_S[at], buckets[at - 1]
    return low + (high - low) * (rank - below) / (buckets[at] - below)

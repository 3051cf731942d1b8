"""Histograms: each lateness is in the bucket that Prometheus would choose, and in the sum."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from celery_delayq.queue.histograms import BOUNDS_S, fields_of, quantile, read, read_buckets


def totals_of(lateness: list[float]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for one in lateness:
        bucket, total, lateness_us = fields_of("h", one)
        totals[bucket] += 1
        totals[total] += lateness_us
    return totals


@given(st.lists(st.floats(0, 400) | st.sampled_from([float(bound) for bound in BOUNDS_S])))
def test_buckets_are_those_of_prometheus_own_histogram(lateness: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("h", "h", buckets=BOUNDS_S, registry=registry)
    for one in lateness:
        theirs.observe(one)
    buckets, total_s = read("h", totals_of(lateness))
    expected = {bound: registry.get_sample_value("h_bucket", {"le": bound}) for bound, _ in buckets}
    assert dict(buckets) == expected
    assert total_s == pytest.approx(sum(lateness), abs=1e-6 * (len(lateness) + 1))


@pytest.mark.parametrize(
    ("lateness_s", "bucket"),
    [(-1.0, "0"), (0.0, "0"), (1e-6, "0.001"), (0.001, "0.001"), (0.0011, "0.0025"), (0.5, "0.5"), (300.1, "inf")],
)
def test_a_bucket_ends_with_its_bound(lateness_s: float, bucket: str) -> None:
    assert fields_of("h", lateness_s)[0] == f"h:{bucket}"


@pytest.mark.parametrize("lateness_s", [float("inf"), 1e300])
def test_a_wrong_clock_does_not_spoil_the_sum(lateness_s: float) -> None:
    assert fields_of("h", lateness_s)[2] < 2**45


def quantile_of(share: float, lateness: list[float]) -> float | None:
    return quantile(share, [number for _, number in read_buckets("h", totals_of(lateness))])


@pytest.mark.parametrize(
    ("share", "lateness", "expected"),
    [
        (0.5, [], None),
        (0.5, [0.0], 0.0),
        (0.95, [0.0] * 95 + [0.3] * 5, 0.0),
        (0.5, [0.02], 0.0175),  # half of the way from 0.01 to 0.025
        (1.0, [0.02], 0.025),
        (0.95, [0.0] * 50 + [0.02] * 50, 0.01 + 0.015 * 0.9),
        (0.5, [0.0] * 50 + [0.02] * 50, 0.0),
        (0.95, [2.0] * 10, 1 + 4 * 0.95),
        (0.95, [1000.0] * 10, 300.0),  # beyond the last bound
        (0.5, [0.3] * 60 + [1000.0] * 40, 0.25 + 0.25 * 50 / 60),
    ],
)
def test_a_quantile_is_that_of_prometheus(share: float, lateness: list[float], expected: float | None) -> None:
    assert quantile_of(share, lateness) == (expected if expected is None else pytest.approx(expected))


@given(st.lists(st.floats(0, 400), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_its_rank(lateness: list[float], share: float) -> None:
    found = quantile_of(share, lateness)
    exact = sorted(lateness)[max(0, math.ceil(share * len(lateness) - 1e-9) - 1)]
    assert found is not None
    high = min((bound for bound in BOUNDS_S if bound >= exact), default=300)
    low = max((bound for bound in BOUNDS_S if bound < exact), default=0)
    assert low <= found <= high or exact > 300

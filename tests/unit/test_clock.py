"""The server's clock as seen from here, with a clock of our own in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue.clock import ServerClock

#: The server's unix time when the test's clock shows 0, in seconds.
START = 1_893_456_000


class ManualClock:
    """A monotonic clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def monotonic() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clock(monotonic: ManualClock) -> ServerClock:
    return ServerClock(monotonic)


def server_us(at: float) -> int:
    """Return the server's time in microseconds when the test's clock shows `at`."""
    return round((START + at) * 1_000_000)


def ms(at: float) -> float:
    return (START + at) * 1000


def test_a_quick_reply_tells_the_time(clock: ServerClock, monotonic: ManualClock) -> None:
    clock.observe(server_us(10.001), sent=10.0, received=10.002)
    monotonic.now = 12.0
    assert clock.seconds_until(ms(15)) == pytest.approx(3.0, abs=1e-6)
    assert clock.seconds_until(ms(11)) == pytest.approx(-1.0, abs=1e-6)


def test_what_must_not_be_early_waits_as_long_as_a_slow_reply_leaves_in_doubt(
    clock: ServerClock, monotonic: ManualClock
) -> None:
    clock.observe(server_us(10.0), sent=10.0, received=10.5)  # all of it on the way back
    monotonic.now = 11.0
    assert clock.seconds_until_past(ms(12), 0.6) >= 1.0
    clock.observe(server_us(11.0), sent=11.0, received=11.001)
    assert clock.seconds_until_past(ms(12), 0.6) == pytest.approx(1.0, abs=0.002)


def test_before_the_first_sample_nobody_knows(clock: ServerClock) -> None:
    assert clock.seconds_until_past(ms(12), 0.6) == float("-inf")


def test_a_slow_reply_does_not_spoil_what_is_known(clock: ServerClock, monotonic: ManualClock) -> None:
    clock.observe(server_us(10.001), sent=10.0, received=10.002)
    clock.observe(server_us(11.0), sent=11.0, received=13.0)  # all of it on the way back
    monotonic.now = 13.0
    assert clock.seconds_until(ms(14)) == pytest.approx(1.0, abs=1e-6)


def test_a_slow_reply_is_better_than_none(clock: ServerClock, monotonic: ManualClock) -> None:
    clock.observe(server_us(11.0), sent=10.0, received=12.0)
    monotonic.now = 12.0
    assert clock.seconds_until(ms(14)) == pytest.approx(2.0, abs=1e-6)


def test_a_clock_that_was_set_is_believed(clock: ServerClock, monotonic: ManualClock) -> None:
    assert clock.observe(server_us(10.001), sent=10.0, received=10.002) == 0
    assert clock.observe(server_us(11.0 + 3600), sent=10.5, received=11.5) == pytest.approx(3600, abs=0.01)
    monotonic.now = 12.0
    assert clock.seconds_until(ms(12 + 3600)) == pytest.approx(0, abs=1e-6)
    assert clock.observe(server_us(12.0), sent=12.0, received=12.0) == pytest.approx(-3600, abs=0.01)


def test_a_slow_reply_is_no_clock_that_was_set(clock: ServerClock) -> None:
    clock.observe(server_us(10.001), sent=10.0, received=10.002)
    assert clock.observe(server_us(11.0), sent=11.0, received=41.0) == 0
    assert clock.observe(server_us(71.0), sent=41.0, received=71.0) == 0


def test_what_is_known_becomes_less_sharp_with_time(clock: ServerClock, monotonic: ManualClock) -> None:
    """So that clocks which drift apart do not keep an old estimate for ever."""
    clock.observe(server_us(0.001), sent=0.0, received=0.002)
    clock.observe(server_us(1000.011), sent=1000.0, received=1000.020)
    monotonic.now = 1001.0
    assert clock.seconds_until(ms(1001)) == pytest.approx(-0.001, abs=1e-6)


@given(st.lists(st.tuples(st.floats(0.0001, 5), st.floats(0, 1), st.floats(0, 10)), min_size=1, max_size=30))
def test_it_is_never_wrong_by_more_than_half_of_the_best_round_trip(
    calls: list[tuple[float, float, float]],
) -> None:
    """Whatever the calls: (how long, when in between the server looked, pause before)."""
    monotonic = ManualClock()
    clock = ServerClock(monotonic)
    for duration, part, pause in calls:
        sent = monotonic.now + pause
        monotonic.now = sent + duration
        clock.observe(server_us(sent + part * duration), sent, monotonic.now)
    error = abs(clock.seconds_until(ms(monotonic.now)))
    drifted = monotonic.now * 0.0005
    assert error <= min(duration for duration, _, _ in calls) / 2 + drifted + 1e-5

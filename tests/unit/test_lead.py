"""How long before they are due messages move: as long as they take to arrive."""

from __future__ import annotations

import pytest

from celery_delayq.transfer.lead import WAKE_AT, Lead
from celery_delayq.transfer.settings import LONGEST_LEAD_S

LEAST_S = 0.01


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lead(clock: Clock) -> Lead:
    return Lead(LEAST_S, clock)


def arrive(lead: Lead, clock: Clock, *, took_s: float, early_s: float) -> None:
    """A message that is due at 5,000 ms is moved when it should be, and arrives."""
    lead.moved(5000, 5010, clock.now)
    clock.now += took_s
    lead.arrived(5005, early_s)


def test_it_rises_at_once_to_what_a_late_message_took(lead: Lead, clock: Clock) -> None:
    arrive(lead, clock, took_s=0.04, early_s=-0.03)
    assert lead.seconds * WAKE_AT == pytest.approx(0.043), "the time that it took, and a little"


def test_it_does_not_rise_for_what_came_in_time(lead: Lead, clock: Clock) -> None:
    """For example because the worker fetches no more before the first ones have begun."""
    arrive(lead, clock, took_s=0.09, early_s=0.005)
    assert lead.seconds == LEAST_S


def test_a_message_that_was_offered_late_tells_nothing(lead: Lead, clock: Clock) -> None:
    """It was moved as soon as it was there, and came at once."""
    arrive(lead, clock, took_s=0.002, early_s=-30)
    assert lead.seconds == LEAST_S


def test_what_others_have_moved_tells_nothing(lead: Lead) -> None:
    lead.arrived(5005, -0.03)
    lead.moved(1000, 2000, 0)
    lead.arrived(5005, -0.03)
    assert lead.seconds == LEAST_S


def test_the_last_move_counts(lead: Lead, clock: Clock) -> None:
    """What is offered shortly before it is due is moved after messages that are due later."""
    lead.moved(5000, 5010, clock.now)
    clock.now += 0.08
    arrive(lead, clock, took_s=0.002, early_s=-0.001)
    assert lead.seconds == LEAST_S


def test_it_sinks_slowly_to_the_least_one(lead: Lead, clock: Clock) -> None:
    arrive(lead, clock, took_s=0.05, early_s=-0.04)
    seen = [lead.seconds]
    for _ in range(12):
        clock.now += 5
        seen.append(lead.seconds)
    assert seen == sorted(seen, reverse=True)
    assert seen[1] > seen[0] / 2
    assert LEAST_S <= seen[-1] < 0.012


def test_a_message_that_took_less_does_not_lower_it(lead: Lead, clock: Clock) -> None:
    arrive(lead, clock, took_s=0.05, early_s=-0.04)
    high = lead.seconds
    arrive(lead, clock, took_s=0.01, early_s=0.001)
    assert high * 0.99 < lead.seconds <= high


def test_it_has_a_limit(lead: Lead, clock: Clock) -> None:
    arrive(lead, clock, took_s=10, early_s=-10)
    assert lead.seconds == pytest.approx(LONGEST_LEAD_S)


@pytest.mark.parametrize("least_s", [0.0, 60.0])
def test_none_stays_none_and_a_long_one_stays_as_it_is(clock: Clock, least_s: float) -> None:
    lead = Lead(least_s, clock)
    arrive(lead, clock, took_s=0.05, early_s=-0.05)
    assert lead.seconds == least_s

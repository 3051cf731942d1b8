"""Times on the command line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import click
import pytest

from celery_delayq.cli.times import SPAN, WHEN, at, shown, shown_span

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("-5", -5),
        ("90s", 90),
        ("+30m", 1800),
        ("-15m", -900),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("250ms", 0.25),
        ("1.5h", 5400),
    ],
)
def test_spans(text: str, seconds: float) -> None:
    assert SPAN(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 m", "m", "1x", "1h-5m", "inf", "nan", "99999999999d", "--5s"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(click.BadParameter, match="as a span of time: write seconds, or 90s"):
        SPAN(text)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2030-01-01T12:00:00", NOON),
        ("2030-01-01 12:00", NOON),
        ("2030-01-01T12:00:00Z", NOON),
        ("2030-01-01T21:00+09:00", NOON),
        ("2030-01-01", NOON.replace(hour=0)),
        ("2030-01-01T12:00:00.5", NOON + timedelta(seconds=0.5)),
        ("2h", NOON + timedelta(hours=2)),
        ("+30m", NOON + timedelta(minutes=30)),
        ("-15m", NOON - timedelta(minutes=15)),
    ],
)
def test_times(text: str, when: datetime) -> None:
    assert at(WHEN(text), round(NOON.timestamp() * 1000)) == when


@pytest.mark.parametrize("text", ["", "soon", "1700000000", "1700", "2030", "2030-13-01", "2030-01-01T25:00", "1x"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"as a time: write it as 2030-12-31T23:59:00\+01:00"):
        WHEN(text)


def test_relative_to_now_has_its_limits() -> None:
    with pytest.raises(click.UsageError, match="the years 1 to 9999"):
        at(timedelta(days=9_999_999), 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (-0.4, "0s"),
        (59, "59s"),
        (61, "1m 1s"),
        (-3, "-3s"),
        (7200, "2h"),
        (100_000, "1d 3h"),
        (-100_000, "-1d 3h"),
        (10**9, "11574d 1h"),
    ],
)
def test_a_span_for_people(seconds: float, text: str) -> None:
    assert shown_span(timedelta(seconds=seconds)) == text


def test_a_time_for_people() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=9)))
    assert shown(elsewhere) == "2030-01-01 12:00:00"
    assert shown(elsewhere, short=True) == "01-01 12:00"
    assert shown(None) == "-"

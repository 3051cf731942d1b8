"""Charts: the geometry of bar charts, which a template draws as SVG. All places are parts of the whole, in percent.

So a chart has the width that there is, and its labels their usual size, on a phone as on a desktop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_delayq.basics.times import EPOCH

#: The least height of a bar that is not zero, in percent.
LEAST = 1.5

_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

#: What may be between two labels below a chart. If even the longest is too short, it is months.
_STEPS = (
    *(5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY),
)
_MOST_LABELS, _MONTHS = 8, 2

#: How far from the ends of a chart a label must be, to be in it as a whole, in percent.
_EDGES = (2, 96)

#: Round times, in seconds, half of which is round, too.
_ROUND_S = (1, 2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600, 2 * 3600, 4 * 3600, 12 * 3600, 24 * 3600)


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        x, y, width, height: where it is, in percent.
        title: what it says when it is pointed at.
        href: where it leads; empty if nowhere.
        is_open: whether it may still grow, because its time is not over.
    """

    x: float
    y: float
    width: float
    height: float
    title: Any
    href: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Chart:
    """A bar chart.

    Attributes:
        bars: the bars that are not zero.
        scale: labels of the two horizontal lines, which are at the top and at half of the height.
        labels: places of the labels below, in percent, and the labels.
    """

    bars: tuple[Bar, ...]
    scale: tuple[str, str]
    labels: tuple[tuple[float, str], ...]


def nice(value: float) -> float:
    """Return a round number that is not smaller, and whose half is a whole number if it is one."""
    if value <= 0:
        return 2
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 1e-6
    while True:
        for factor in (2, 4, 6, 8, 10) if power == 1 else (1, 2, 3, 4, 5, 6, 8, 10):
            if factor * power >= value:
                return factor * power
        power *= 10


def nice_time(seconds: float) -> float:
    """Return a round time that is not shorter, and whose half is round, too: 2 minutes, not 100 seconds."""
    if 0 < seconds < _ROUND_S[0]:
        return nice(seconds * 1000) / 1000
    day_s = _ROUND_S[-1]
    return next((one for one in _ROUND_S if one >= seconds), None) or nice(seconds / day_s) * day_s


def bar_chart(
    values: Sequence[float | None],
    titles: Sequence[Any],
    labels: Sequence[tuple[float, str]],
    *,
    hrefs: Sequence[str] = (),
    unit: Callable[[float], str] = str,
    rounded: Callable[[float], float] = nice,
    is_last_open: bool = False,
) -> Chart:
    """Return a bar chart.

    Args:
        values: heights; None for none.
        titles: what each bar says when it is pointed at.
        labels: places of the labels below, and the labels; see `labels_between`.
        hrefs: where each bar leads.
        unit: turns a value into the label of a line.
        rounded: returns a round value that is not smaller, for the upper line.
        is_last_open: whether the last bar may still grow.
    """
    top = rounded(max((value for value in values if value), default=0))
    step = 100 / max(1, len(values))
    bars = []
    for at, value in enumerate(values):
        if value:
            height = max(LEAST, round(100 * value / top, 2))
            bars.append(
                Bar(
                    round(step * (at + 0.08), 3),
                    round(100 - height, 2),
                    round(step * 0.84, 3),
                    height,
                    titles[at],
                    hrefs[at] if hrefs else "",
                    is_last_open and at == len(values) - 1,
                )
            )
    return Chart(tuple(bars), (unit(top), unit(top / 2)), tuple(labels))


def labels_between(start: datetime, end: datetime) -> list[tuple[float, str]]:
    """Return labels at round times of UTC, at most about eight: the places in percent, and the texts."""
    span = end - start
    step = next((step for step in _STEPS if span <= step * _MOST_LABELS), None)
    times = _months(start, end) if step is None else _multiples(start, end, step)
    found = []
    for when in times:
        place = round(100 * ((when - start) / span), 2)
        if _EDGES[0] <= place <= _EDGES[1]:
            is_midnight = step is not None and (when - EPOCH) % _DAY == timedelta(0)
            found.append((place, when.strftime("%Y-%m" if step is None else "%m-%d" if is_midnight else "%H:%M")))
    return found


def _multiples(start: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
    """Yield full steps since a Monday: the epoch was a Thursday."""
    first = EPOCH - 3 * _DAY
    when = first - ((first - start) // step) * step
    while when < end:
        yield when
        when += step


def _months(start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the beginning of each second month."""
    for month in range(start.year * 12, end.year * 12 + 12, _MONTHS):
        when = datetime(month // 12, month % 12 + 1, 1, tzinfo=timezone.utc)
        if start <= when < end:
            yield when

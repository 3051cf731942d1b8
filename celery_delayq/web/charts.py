"""Charts: the geometry of bar charts, which a template draws as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: The size of a chart, in the units of its SVG: the room of the bars, and that of the labels.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 170, 64, 30, 20

#: The width of a digit in the largest text of a chart, and the gap between a label and the bars; see `web.css`.
DIGIT, GAP = 12, 12


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        x, y, width, height: where it is.
        title: what it says when it is pointed at.
        href: where it leads; empty if nowhere.
    """

    x: float
    y: float
    width: float
    height: float
    title: Any
    href: str = ""


@dataclass(frozen=True)
class Chart:
    """A bar chart.

    Attributes:
        bars: the bars that are not zero.
        lines: heights of the horizontal lines, with their labels.
        labels: places of the labels below, and the labels.
        width, height: of the whole.
        left, right, floor: the room of the bars.
    """

    bars: tuple[Bar, ...]
    lines: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str], ...]
    width: int = WIDTH
    height: int = TOP + HEIGHT + BOTTOM
    left: int = LEFT
    right: int = WIDTH
    floor: int = TOP + HEIGHT


def bar_chart(
    values: Sequence[float | None],
    titles: Sequence[Any],
    labels: Sequence[tuple[int, str]],
    *,
    hrefs: Sequence[str] = (),
    unit: Any = str,
) -> Chart:
    """Return a bar chart.

    Args:
        values: heights; None for none.
        titles: what each bar says when it is pointed at.
        labels: the bar below whose left edge a label is, and the label.
        hrefs: where each bar leads.
        unit: turns a value into the label of a line.
    """
    top = _nice(max((value for value in values if value), default=0))
    scale = tuple((top * part, unit(top * part)) for part in (0.5, 1))
    left = max(LEFT, GAP + DIGIT * max(len(text) for _, text in scale))
    step = (WIDTH - left) / max(1, len(values))
    gap = min(2.0, step / 5)

    def y_of(value: float) -> float:
        return round(TOP + HEIGHT * (1 - value / top), 1)

    bars = tuple(
        Bar(
            round(left + step * at + gap / 2, 1),
            min(y_of(value), TOP + HEIGHT - 2.0),
            round(step - gap, 1),
            max(2.0, round(TOP + HEIGHT - y_of(value), 1)),
            titles[at],
            hrefs[at] if hrefs else "",
        )
        for at, value in enumerate(values)
        if value
    )
    lines = tuple((y_of(value), text) for value, text in scale)
    return Chart(bars, lines, tuple((round(left + step * at, 1), label) for at, label in labels), left=left)


def _nice(value: float) -> float:
    """Return a round number that is not smaller, and whose half is a whole number if it is one."""
    if value <= 0:
        return 2
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 1e-6
    while True:
        for factor in (2, 4, 6, 8, 10) if power == 1 else (1, 2, 3, 4, 5, 6, 8, 10):
            if factor * power >= value:
                return factor * power
        power *= 10

"""Panels of a dashboard as one SVG: lines, and a heatmap of a histogram's buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from xml.sax.saxutils import escape

#: Seconds since the beginning, and the value then.
Point = tuple[float, float]

_COLUMNS, _WIDTH, _HEIGHT = 2, 420, 130
_LEFT, _TOP, _RIGHT, _BELOW = 46, 24, 10, 38
_COLOURS = ("#1f77b4", "#d9822b", "#2ca02c", "#9467bd", "#d62728", "#7f7f7f")
_HEAT = ("#fee6ce", "#fdc38d", "#fb9a4b", "#e6691c", "#a63603")
_STYLE = "text{font:11px sans-serif;fill:#222}.h{font-weight:bold}.m{fill:#666}"


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        title: its heading.
        series: what is drawn, by name. In a heatmap: each bucket with those below it, by its upper bound.
        unit: what values are measured in; empty for numbers of messages.
        is_heatmap: whether the series are buckets.
    """

    title: str
    series: dict[str, list[Point]]
    unit: str = ""
    is_heatmap: bool = False


def draw(panels: Sequence[Panel], *, span_s: float, marks: dict[str, float]) -> str:
    """Return the panels as SVG.

    Args:
        panels: what to draw.
        span_s: end of the time axis, which begins at 0.
        marks: what happened when, drawn as dashed lines and named below all panels.
    """
    rows = math.ceil(len(panels) / _COLUMNS)
    across, down = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BELOW
    width, height = _COLUMNS * across, rows * down + 18 * len(marks) + 8
    parts = []
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        inner = _panel(panel, span_s, marks)
        parts.append(f'<g transform="translate({column * across + _LEFT} {row * down + _TOP})">{inner}</g>')
    for number, (text, at_s) in enumerate(marks.items()):
        said = f"{number + 1}   {at_s:.0f} s: {text}"
        parts.append(_text(_LEFT, rows * down + 14 + 18 * number, said))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
            *parts,
            "</svg>\n",
        )
    )


def _panel(panel: Panel, span_s: float, marks: dict[str, float]) -> str:
    title = f"{panel.title} ({panel.unit})" if panel.unit else panel.title
    parts = [_text(0, -8, title, "h"), f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="#999"/>']
    parts += _heatmap(panel.series, span_s) if panel.is_heatmap else _lines(panel.series, span_s)
    for number, at_s in enumerate(marks.values()):
        x = round(at_s / span_s * _WIDTH, 1)
        parts.append(f'<path d="M{x} 0V{_HEIGHT}" stroke="#999" stroke-dasharray="2 3"/>')
        parts.append(_text(x + 2, 9, str(number + 1), "m"))
    parts += [_text(x_s / span_s * _WIDTH - 4, _HEIGHT + 13, f"{x_s} s", "m") for x_s in range(0, int(span_s), 30)]
    return "\n".join(parts)


def _lines(series: dict[str, list[Point]], span_s: float) -> list[str]:
    most = _round_up(max((value for points in series.values() for _, value in points), default=0.0))
    parts = [_text(-6, 9, f"{most:g}", "m", "end"), _text(-6, _HEIGHT, "0", "m", "end")]
    x = 0.0
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        steps = [f"{at_s / span_s * _WIDTH:.0f} {_HEIGHT - value / most * _HEIGHT:.0f}" for at_s, value in points]
        # Where there is no number, there is no line.
        apart = [0.0, *(later[0] - one[0] for one, later in pairwise(points))]
        usual = median(apart[1:] or apart)
        pen = ["M" if not number or gap > 1.5 * usual else "L" for number, gap in enumerate(apart)]
        path = "".join(move + step for move, step in zip(pen, steps, strict=True))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<rect x="{x:.0f}" y="{_HEIGHT + 19}" width="10" height="3" fill="{colour}"/>')
        parts.append(_text(x + 14, _HEIGHT + 25, name, "m"))
        x += 30 + 5.6 * len(name)
    return parts


def _heatmap(buckets: dict[str, list[Point]], span_s: float) -> list[str]:
    bounds = sorted(buckets, key=float)
    below: dict[float, float] = {}
    cells: list[tuple[int, float, float]] = []
    for row, bound in enumerate(bounds):
        for at_s, value in buckets[bound]:
            cells.append((row, at_s, value - below.get(at_s, 0.0)))
            below[at_s] = value
    most = max((value for *_, value in cells), default=0.0) or 1.0
    times = sorted(below)
    wide = (times[1] - times[0]) / span_s * _WIDTH if len(times) > 1 else 1.0
    high = _HEIGHT / len(bounds)
    levels: dict[int, list[str]] = {}
    for row, at_s, value in cells:
        if value > 0.1:  # less is only the estimate of `increase`
            level = min(len(_HEAT) - 1, int(math.sqrt(value / most) * len(_HEAT)))
            x, y = at_s / span_s * _WIDTH - wide, _HEIGHT - (row + 1) * high
            levels.setdefault(level, []).append(f"M{max(0.0, x):.1f} {y:.1f}h{wide:.1f}v{high - 0.5:.1f}h-{wide:.1f}z")
    parts = [f'<path d="{"".join(shapes)}" fill="{_HEAT[level]}"/>' for level, shapes in sorted(levels.items())]
    for row, bound in enumerate(bounds):
        if row % 3 == 0 or row == len(bounds) - 1:
            name = "more" if math.isinf(float(bound)) else f"{float(bound):g}"
            parts.append(_text(-6, _HEIGHT - row * high - 1, name, "m", "end"))
    return parts


def _round_up(value: float) -> float:
    """Return the end of an axis: 1, 2 or 5 with zeros."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(text)}</text>'

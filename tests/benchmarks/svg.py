"""Plots of a report as SVG: bars for each figure that has several variants, each figure with a scale of its own."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from xml.sax.saxutils import escape

from tests.benchmarks.figures import Figure
from tests.benchmarks.numbers import shown
from tests.benchmarks.report import Report

_WIDTH, _LABELS, _BARS = 860, 190, 520
_LINE, _BAR, _GAP = 20, 13, 12
_COLOURS = ("#7f7f7f", "#1f77b4", "#d9822b", "#2ca02c", "#9467bd")
_STYLE = "text{font:12px sans-serif;fill:#222}.h{font-weight:bold}.m{fill:#666}"


def plot(report: Report) -> str | None:
    """Return the picture: a bar is a median, the line in it goes from the least to the greatest sample, and a dashed
    line is the target. None if there is nothing to compare.
    """
    figures = [figure for figure in report.figures if len(figure.samples) > 1]
    if not figures:
        return None
    colours = _colours(figures)
    parts, top = [_text(0, 14, report.title, "h")], _LINE + _GAP
    for figure in figures:
        parts.append(_text(0, top + 12, f"{figure.name} ({figure.unit})" if figure.unit else figure.name, "h"))
        top += _LINE
        parts += _bars(figure, colours, top)
        top += _LINE * len(figure.samples) + _GAP
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -6 {_WIDTH} {top + 6}" width="{_WIDTH}">',
            f'<style>{_STYLE}</style><rect x="-10" y="-6" width="100%" height="100%" fill="#fff"/>',
            *parts,
            "</svg>\n",
        )
    )


def _colours(figures: Sequence[Figure]) -> dict[str, str]:
    """Return a colour for each variant, the same one everywhere."""
    variants = dict.fromkeys(variant for figure in figures for variant in figure.samples)
    return {variant: _COLOURS[number % len(_COLOURS)] for number, variant in enumerate(variants)}


def _bars(figure: Figure, colours: dict[str, str], top: int) -> list[str]:
    bound = figure.bound()
    most = max([*(max(values) for values in figure.samples.values()), bound or 0.0]) or 1.0

    def x(value: float) -> float:
        return round(_LABELS + max(0.0, value) / most * _BARS, 1)

    parts = []
    for row, (variant, values) in enumerate(figure.samples.items()):
        y, middle = top + row * _LINE, median(values)
        parts.append(_text(0, y + 11, variant, "m"))
        parts.append(
            f'<rect x="{_LABELS}" y="{y}" width="{round(x(middle) - _LABELS, 1)}" height="{_BAR}" '
            f'fill="{colours[variant]}"/>'
        )
        if min(values) < max(values):
            parts.append(_line(x(min(values)), y + _BAR / 2, x(max(values)), y + _BAR / 2))
        parts.append(_text(x(max(values)) + 6, y + 11, shown(middle)))
    if bound is not None:
        bottom = top + _LINE * len(figure.samples) - (_LINE - _BAR)
        parts.append(_line(x(bound), top - 3, x(bound), bottom + 3, ' stroke-dasharray="3 2"'))
    return parts


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#222"{more}/>'

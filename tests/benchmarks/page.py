"""A page of figures for the docs: the tables of one run, and its plots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.report import HEADINGS, Report, cells_of


@dataclass(frozen=True)
class Result:
    """What a scenario found out in one run.

    Attributes:
        scenario: its name.
        report: what it found.
        seconds: how long it took.
        plot: the file of its plot; None if there is none.
    """

    scenario: str
    report: Report
    seconds: float
    plot: Path | None


def page(machine: Mapping[str, str], results: Iterable[Result], folder: Path) -> str:
    """Return the page in Markdown.

    Args:
        machine: the machine and all versions, see `environment`.
        results: of one run.
        folder: where the page will be; links to plots are relative to it.
    """
    lines = [
        "# Figures",
        "",
        "Written by one run of the benchmarks. [benchmarks.md](benchmarks.md) says what is measured, and how.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
    ]
    for one in results:
        lines += ["", f"## {one.scenario}", "", f'{one.report.title}. `make bench ARGS="{one.scenario}"`', ""]
        if one.plot:
            lines += [f"![{one.scenario}]({Path(os.path.relpath(one.plot, folder)).as_posix()})", ""]
        if one.report.figures:
            lines += [*_table(one.report), ""]
        lines += [*(f"- {note}" for note in one.report.notes), f"- Measured in {one.seconds:,.0f} s."]
    return "\n".join(lines) + "\n"


def _table(report: Report) -> list[str]:
    lines = [_row(HEADINGS), "|---|---|" + "---:|" * 5 + "---|"]
    for figure in report.figures:
        title = f"{figure.name} ({figure.unit})" if figure.unit else figure.name
        for number, variant in enumerate(figure.samples):
            lines.append(_row(("" if number else title, variant, *cells_of(figure, variant))))
    return lines


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""How figures are shown: tables for people, JSON for programs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from examples.private_redis import name_and_version
from tests.benchmarks.figures import OURS, Figure
from tests.benchmarks.numbers import shown

#: Whose versions are shown, if they are installed.
_PACKAGES = ("celery", "kombu", "redis", "celery-delayq", "celery-redbeat", "celery-redis-plus")

#: Of the columns of a table.
HEADINGS = ("figure", "variant", "median", "min", "max", "ratio", "target", "reached")


@dataclass
class Report:
    """What a scenario found out.

    Attributes:
        title: what was measured, in a sentence.
        figures: the results.
        notes: what a reader has to know, a sentence each.
    """

    title: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def figure(self, name: str, unit: str, **options: Any) -> Figure:
        """Add a figure and return it."""
        self.figures.append(Figure(name, unit, **options))
        return self.figures[-1]

    def show(self, console: Console, seconds: float) -> None:
        """Print a table: medians, the spread behind them, the ratio to the baseline, the target; and what it took."""
        table = Table(title=self.title, title_justify="left", title_style="bold", caption_justify="left")
        table.caption = "\n".join(self.notes)
        left, right = HEADINGS[:2], HEADINGS[2:-1]
        for heading in left:
            table.add_column(heading, overflow="fold")
        for heading in right:
            table.add_column(heading, justify="right")
        table.add_column(HEADINGS[-1])
        for figure in self.figures:
            for row, variant in enumerate(figure.samples):
                unit = f" [dim]({figure.unit})[/dim]" if figure.unit else ""
                name = f"{figure.name}{unit}" if row == 0 else ""
                *cells, reached = cells_of(figure, variant)
                table.add_row(name, variant, *cells, f"[red]{reached}[/red]" if reached == "no" else reached)
            table.add_section()
        console.print(table)
        console.print(f"[dim]measured in {seconds:,.0f} s[/dim]")
        console.print()

    def as_json(self) -> dict[str, Any]:
        """Return all that was measured."""
        return {
            "title": self.title,
            "notes": self.notes,
            "figures": [
                {
                    "name": figure.name,
                    "unit": figure.unit,
                    "baseline": figure.baseline,
                    "samples": figure.samples,
                    "medians": {name: median(values) for name, values in figure.samples.items()},
                    "ratios": {name: figure.ratio(name) for name in figure.samples},
                    "target": str(figure.target) if figure.target else None,
                    "reached": figure.is_reached(),
                }
                for figure in self.figures
            ],
        }


def environment(client: redis.Redis) -> dict[str, str]:
    """Return the machine, and the versions of all that takes part."""
    return {
        "machine": f"{os.cpu_count()} cores, {_cpu_model()}, {platform.system()} {platform.release()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "server": name_and_version(client.info("server")),
        **{name: found for name in _PACKAGES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cells_of(figure: Figure, variant: str) -> list[str]:
    """Return what stands in the row of a variant, from the third of `HEADINGS` on."""
    values = figure.samples[variant]
    ratio = figure.ratio(variant)
    cells = [shown(median(values)), shown(min(values)), shown(max(values))]
    cells.append("" if ratio is None else shown(ratio))
    if variant == OURS and figure.target:
        reached = figure.is_reached()
        return [*cells, str(figure.target), "yes" if reached else "no"]
    return [*cells, "", ""]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()

"""The command: run scenarios and show what they found out."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from celery_delayq.cli.output import console
from examples.private_redis import PrivateRedis
from tests.benchmarks.report import Report, environment
from tests.benchmarks.scale import FULL, QUICK
from tests.benchmarks.svg import plot

#: The scenarios, a module each, in the order in which they run.
SCENARIOS = (
    *("limits", "publish", "throughput", "lateness", "burst"),
    *("transfer", "memory", "fleet", "idle", "periodic"),
)


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS))
@click.option("--quick", is_flag=True, help="Small numbers: whether it works, in three minutes.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all samples to this file too.",
)
@click.option(
    "--svg",
    "svg_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write plots to this folder, one a scenario.",
)
def main(scenarios: tuple[str, ...], quick: bool, json_path: Path | None, svg_folder: Path | None) -> None:
    """Measure celery_delayq beside stock Celery, or beside Redisson's way where Celery has none.

    Without a SCENARIO, all of them. Each has Redis servers of its own.
    """
    out = console()
    with PrivateRedis() as server, server.client() as client:
        machine = environment(client)
    out.print("   ".join(f"[dim]{name}[/dim] {value}" for name, value in machine.items()))
    out.print()
    reports: dict[str, Any] = {}
    names = scenarios or SCENARIOS
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=out, transient=True, disable=not out.is_terminal) as bar:
        running = bar.add_task("", total=len(names))
        for name in names:
            bar.update(running, description=name)
            report, seconds = _run(name, quick)
            report.show(out, seconds)
            reports[name] = {"seconds": round(seconds, 1), **report.as_json()}
            bar.advance(running)
            picture = plot(report) if svg_folder else None
            if svg_folder and picture:
                svg_folder.mkdir(parents=True, exist_ok=True)
                (svg_folder / f"{name}.svg").write_text(picture)
            if json_path:
                json_path.write_text(json.dumps({"environment": machine, **reports}, indent=1))


def _run(name: str, quick: bool) -> tuple[Report, float]:
    """Run a scenario; return what it found, and how many seconds it took."""
    begin = time.monotonic()
    report: Report = importlib.import_module(f"tests.benchmarks.{name}").run(QUICK if quick else FULL)
    return report, time.monotonic() - begin


if __name__ == "__main__":
    main()

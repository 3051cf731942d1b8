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
from tests.benchmarks.page import Result, page
from tests.benchmarks.report import Report, environment
from tests.benchmarks.scale import FULL, QUICK
from tests.benchmarks.svg import plot

#: The scenarios, a module each, in the order in which they run.
SCENARIOS = (
    *("limits", "publish", "unique", "throughput", "lateness", "burst"),
    *("transfer", "memory", "ready", "fleet", "idle", "metrics", "web", "periodic", "replicas", "cluster", "peers"),
    "others",
)


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS))
@click.option("--quick", is_flag=True, help="Small numbers: whether it works, in five minutes.")
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
@click.option(
    "--markdown",
    "page_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the tables to this page, with the plots of --svg.",
)
def main(
    scenarios: tuple[str, ...], quick: bool, json_path: Path | None, svg_folder: Path | None, page_path: Path | None
) -> None:
    """Measure celery_delayq beside stock Celery, or beside Redisson's way where Celery has none.

    Without a SCENARIO, all of them. Each has Redis servers of its own.
    """
    out = console()
    with PrivateRedis() as server, server.client() as client:
        machine = environment(client)
    out.print("   ".join(f"[dim]{name}[/dim] {value}" for name, value in machine.items()))
    out.print()
    results: list[Result] = []
    names = scenarios or SCENARIOS
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=out, transient=True, disable=not out.is_terminal) as bar:
        running = bar.add_task("", total=len(names))
        for name in names:
            bar.update(running, description=name)
            results.append(_run(name, quick, svg_folder))
            results[-1].report.show(out, results[-1].seconds)
            bar.advance(running)
            if json_path:
                json_path.write_text(json.dumps({"environment": machine, **_as_json(results)}, indent=1))
            if page_path:
                page_path.write_text(page(machine, results, page_path.parent))


def _run(name: str, quick: bool, svg_folder: Path | None) -> Result:
    begin = time.monotonic()
    report: Report = importlib.import_module(f"tests.benchmarks.{name}").run(QUICK if quick else FULL)
    picture = plot(report)
    path = svg_folder / f"{name}.svg" if svg_folder and picture else None
    if path and picture:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture)
    return Result(name, report, time.monotonic() - begin, path)


def _as_json(results: list[Result]) -> dict[str, Any]:
    return {one.scenario: {"seconds": round(one.seconds, 1), **one.report.as_json()} for one in results}


if __name__ == "__main__":
    main()

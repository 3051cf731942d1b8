"""The command: let faults strike, and show what became of the tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from celery_delayq.cli.output import console
from tests.soak.faults import FAULTS, STOCK_FAULTS
from tests.soak.night import NIGHTS, run_night
from tests.soak.soak import Result, run

#: With stock Celery and other brokers, in a harness like this one: 15 SIGKILLs in 60 s at 150 tasks/s.
_OTHERS = "recovery, others: stock Celery lost 9 of 9,000 and was up to 70 s late; RabbitMQ none, and up to 0.85 s"


@click.command()
@click.argument("names", nargs=-1, metavar="[FAULT]...")
@click.option(
    "--seconds",
    type=float,
    help="How long each fault strikes; 20 s, and 60 s or more for some, by default. A night takes as long as it takes.",
)
@click.option("--rounds", default=1, show_default=True, help="How often to go through all faults.")
@click.option("--pool", type=click.Choice(["prefork", "threads", "solo"]), help="Instead of the fault's own.")
@click.option("--stock", is_flag=True, help="With stock Celery on kombu's Redis transport, for comparison.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the figures to this file too.",
)
def main(
    names: tuple[str, ...], seconds: float | None, rounds: int, pool: str | None, stock: bool, json_path: Path | None
) -> None:
    """Let faults strike real workers at work, and tell lost, cut off, twice and late tasks apart.

    All faults strike, or those that are named; an unknown name shows the list.

    Exits with 1 if a task was lost, ran twice without need, or ran early, or if anything else was not in order.
    """
    ours = {**FAULTS, **NIGHTS}
    known = {name: it.sentence for name, it in (STOCK_FAULTS if stock else ours).items()}
    if unknown := [name for name in names if name not in known]:
        lines = "\n".join(f"{name:16} {sentence}" for name, sentence in known.items())
        raise click.BadParameter(f"{unknown[0]} is none of these faults:\n{lines}")
    out = console(width=140)
    results = []
    for name in (names or tuple(known)) * rounds:
        with out.status(f"{name}: {known[name]}") as status:
            if name in NIGHTS:
                result = run_night(NIGHTS[name])
            else:
                result = run(
                    FAULTS[name],
                    seconds,
                    is_stock=stock,
                    pool=pool,
                    on_strike=lambda number: status.update(f"{name}: {known[name]}, {number + 1}"),  # noqa: B023
                )
        results.append(result)
        for text in (*result.traces, *result.complaints):
            out.print(text, markup=False, highlight=False)
        if json_path:
            json_path.write_text(json.dumps([_figures(result) for result in results], indent=1))
    out.print(_table(results, "stock Celery" if stock else "celery_delayq"))
    if not stock and not all(result.is_well for result in results):
        raise SystemExit(1)


def _figures(result: Result) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "fault": result.name,
        "strikes": result.strikes,
        "tasks": len(verdict.sure),
        "in doubt": len(verdict.in_doubt),
        "refused": len(verdict.refused),
        "lost": len(verdict.lost),
        "cut off": len(verdict.cut_off),
        "flushed": len(verdict.flushed),
        "twice": len(verdict.twice),
        "without need": len(verdict.unexplained),
        "early": len(verdict.early),
        "late p50 s": round(verdict.median_late_s, 3),
        "late max s": round(verdict.most_late_s, 2),
        "complaints": len(result.complaints),
    }


def _table(results: list[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    table.caption = (
        "cut off: acknowledged early (Celery's default) and then killed; twice: of these, those without need did not "
        f"run in a process that was killed, suspended or cut off for longer than its lease\n{_OTHERS}"
    )
    rows = [_figures(result) for result in results]
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == "fault" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    return table


if __name__ == "__main__":
    main()

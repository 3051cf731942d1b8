"""What commands write: tables for people, JSON for machines, progress in a terminal."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from celery_delayq.cli.plain import say, visible
from celery_delayq.inspector.pages import OnProgress

T = TypeVar("T")

#: Columns of the output where it goes into a file.
WIDTH = 120

#: A terminal with fewer columns is narrow: times and names are short there.
NARROW = 100


def console(*, stderr: bool = False, width: int = WIDTH) -> Console:
    """Return a console: as wide as its terminal, or of a fixed width where there is none."""
    celery = getattr(click.get_current_context(silent=True), "obj", None)
    # Rich's `no_color` alone leaves bold and dim.
    colors: Any = {"no_color": True, "color_system": None} if getattr(celery, "no_color", False) else {}
    found = Console(stderr=stderr, **colors)
    return found if found.is_terminal else Console(stderr=stderr, **colors, width=width)


def print_json(value: Mapping[str, Any]) -> None:
    """Write an object as one line."""
    say(json.dumps(value))


def new_table(title: str | None = None, *, dense: bool = False) -> Table:
    """Return an empty table as all commands show it; a dense one has the least space between columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0 if dense else (0, 1, 0, 0),
    )


def add_columns(table: Table, *names: str, right: bool = False, firm: bool = False) -> None:
    """Add columns whose cells are folded where the terminal is narrow.

    Args:
        table: to which.
        names: their headings.
        right: align cells on the right.
        firm: leave them as they are while others can be folded.
    """
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if right else "left", no_wrap=firm)


def text(value: object, *, one_line: bool = False) -> Text:
    """Return anything as text without markup and without control characters: it may come from anybody.

    Args:
        value: what to show; None is a dash.
        one_line: cut it where the column ends.
    """
    plain = "-" if value is None else visible(value)
    return Text(plain, no_wrap=True, overflow="ellipsis") if one_line else Text(plain)


def short_name(task: Any) -> Any:
    """Return the name of a task without its module; what is no name, as it is."""
    return task.rpartition(".")[2] if isinstance(task, str) else task


def print_details(fields: Mapping[str, Any], as_json: bool) -> None:
    """Write one object: as JSON, or its names and values one below the other."""
    if as_json:
        print_json(fields)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            lines = [text(f"{key}: {_json(inner)}") for key, inner in value.items()]
            table.add_row(text(name), Text("\n").join(lines))
        else:
            table.add_row(text(name), text(_json(value) if isinstance(value, list) else value))
    console().print(table)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def progress(what: str) -> Iterator[OnProgress]:
    """Give a function to tell how far a command is: a bar on stderr, if that is a terminal, until the block ends."""
    stderr = console(stderr=True)
    if not stderr.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(visible(what), total=None)

        def on_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield on_progress


def tracked(items: Collection[T], what: str) -> Iterator[T]:
    """Yield the items with a bar, see `progress`."""
    with progress(what) as on_progress:
        for number, item in enumerate(items):
            on_progress(number, len(items))
            yield item

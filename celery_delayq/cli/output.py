"""Output of commands: tables for people, JSON for programs, a progress bar on terminals."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from celery_delayq.basics.text import plural
from celery_delayq.cli.plain import say, visible
from celery_delayq.inspector.pages import OnProgress

T = TypeVar("T")

#: Width of the output, in columns, if it is not a terminal.
WIDTH = 120

#: Terminals with fewer columns get short times and names.
NARROW = 100

#: Words with more columns fold in cells that fold.
_LONGEST_WORD = 40


def console(*, stderr: bool = False, width: int = WIDTH) -> Console:
    """Return a console as wide as the terminal, or `width` columns wide if there is no terminal."""
    celery = getattr(click.get_current_context(silent=True), "obj", None)
    # Rich's `no_color` alone would keep bold and dim.
    colors: Any = {"no_color": True, "color_system": None} if getattr(celery, "no_color", False) else {}
    found = Console(stderr=stderr, **colors)
    return found if found.is_terminal else Console(stderr=stderr, **colors, width=width)


def print_json(value: Mapping[str, Any]) -> None:
    """Write an object as one line."""
    say(json.dumps(value))


def print_rows(rows: Iterable[Mapping[str, Any]], as_json: bool, table: Callable[[int], Table]) -> None:
    """Write several objects.

    Args:
        rows: the objects, for JSON.
        as_json: whether to write JSON.
        table: returns the table for a console of so many columns. One with a `min_width` may be wider.
    """
    if as_json:
        for row in rows:
            print_json(row)
    else:
        out = console()
        made = table(out.width)
        out.width = max(out.width, made.min_width or 0)
        out.print(made)


def say_rest(cursor: str | None, nouns: str, as_json: bool) -> None:
    """Say how to continue a list.

    Args:
        cursor: where the rest starts; None if there is none.
        nouns: what the list shows, in the plural.
        as_json: whether a program reads it.
    """
    if cursor is None:
        return
    if as_json:
        print_json({"cursor": cursor})
    else:
        say(f"There may be more {nouns}: continue with --cursor {cursor}, or show all with --all.", err=True)


def say_changed(ctx: click.Context, answers: Mapping[str, bool], done: str, noun: str, as_json: bool) -> None:
    """Say which of some objects were changed. Exits with 1 if one was not.

    Args:
        ctx: the context of the command.
        answers: ids, and whether each was changed.
        done: what was done with them: "cancelled".
        noun: what they are, in the singular.
        as_json: whether a program reads it.
    """
    if as_json:
        for changed_id, changed in answers.items():
            print_json({"id": changed_id, "done": changed})
    else:
        say(f"{plural(sum(answers.values()), noun)} {done}.")
    if not all(answers.values()):
        ctx.exit(1)


def new_table(title: str | None = None, *, dense: bool = False) -> Table:
    """Return an empty table in the style of all commands. A dense one has no extra space between columns."""
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
    """Add columns whose cells fold if the terminal is narrow.

    Args:
        table: the table to change.
        names: column headings.
        right: align cells on the right.
        firm: do not fold these columns; fold the others first.
    """
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if right else "left", no_wrap=firm)


def least_width(table: Table) -> int:
    """Return the width at which no firm column folds, and no word of up to 40 columns: so people can copy them."""
    gap = 1 + table.padding[1]
    return sum(gap + _least(column) for column in table.columns)


def fitting(tables: Iterable[Table], width: int) -> Table:
    """Return the first of these tables that needs no more columns than there are; otherwise the last one."""
    for table in tables:
        if least_width(table) <= width:
            break
    return table


def _least(column: Column) -> int:
    cells = [str(cell) for cell in (column.header, *column.cells)]
    longest = max(map(cell_len, "\n".join(cells).split("\n" if column.no_wrap else None)))
    return longest if column.no_wrap else min(longest, _LONGEST_WORD)


def text(value: object, *, one_line: bool = False) -> Text:
    """Return a value as text without markup and control characters: it may come from an untrusted source.

    Args:
        value: the value; None becomes a dash.
        one_line: cut the text at the end of the column.
    """
    plain = "-" if value is None else visible(value)
    return Text(plain, no_wrap=True, overflow="ellipsis") if one_line else Text(plain)


def short_name(task: Any) -> Any:
    """Return the name of a task without its module. A value that is not a string is returned unchanged."""
    return task.rpartition(".")[2] if isinstance(task, str) else task


def print_details(fields: Mapping[str, Any], as_json: bool) -> None:
    """Write one object: as JSON, or as a list of names and values."""
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
        elif name == "traceback" and value:
            table.add_row(text(name), Text("\n").join(map(text, value.splitlines())))
        else:
            table.add_row(text(name), text(_json(value) if isinstance(value, list) else value))
    console().print(table)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def progress(what: str) -> Iterator[OnProgress]:
    """Yield a function that reports progress. If stderr is a terminal, it draws a bar there until the block ends."""
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
    """Yield the items, and show progress; see `progress`."""
    with progress(what) as on_progress:
        for number, item in enumerate(items):
            on_progress(number, len(items))
            yield item

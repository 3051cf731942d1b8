"""Helpers that all commands share: the command decorator, common options, confirmation, usage errors.

Exit codes: 0 done; 1 something was not found, nothing matched, or the command failed; 2 wrong usage, or --yes is
missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_delayq.cli.plain import say, visible
from celery_delayq.schedule.encoding import json_of

#: Adds an option or argument to a function.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def several(*options: Decorator) -> Decorator:
    """Return a decorator that adds options and arguments, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def page_options(nouns: str) -> Decorator:
    """Return the options of a list that may be long; see `say_rest`.

    Args:
        nouns: what it lists, in the plural.
    """
    return several(
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=100,
            show_default=True,
            help=f"Show at most this many {nouns}.",
        ),
        click.option("--cursor", help="Continue where the previous list ended."),
        click.option("--all", "everything", is_flag=True, help=f"Show all {nouns}, without a limit."),
    )


#: For commands whose output programs may read.
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")

#: For commands that show a message. Without it they show only what Celery would log, because people use `argsrepr`
#: to keep secrets out of that.
body_option: Decorator = click.option(
    "--body", "with_body", is_flag=True, help="Also show the body, with all arguments in full. JSON bodies only."
)

#: For destructive commands; see `confirm`.
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A text that a function reads.

    Args:
        name: of the type, as help shows it.
        read: returns the value of a text. Raises ValueError or OverflowError if there is none.
        wanted: what such a text is, and how to write it, for the message; by default, the error itself says so.
    """

    def __init__(self, name: str, read: Callable[[str], Any], wanted: str = "") -> None:
        self.name = name
        self._read = read
        self._wanted = wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        if not isinstance(value, str):  # it was read before
            return value
        try:
            return self._read(value)
        except (ValueError, OverflowError) as exc:
            self.fail(f"cannot parse {value!r} as {self._wanted}" if self._wanted else str(exc), param, ctx)


#: JSON, for example the arguments of a task.
LIST, OBJECT = Parsed("list", partial(json_of, kind=list)), Parsed("object", partial(json_of, kind=dict))


def command(name: str, group: click.Group | None = None) -> Callable[[Callable[..., None]], click.Command]:
    """Turn a function with Click options into a Celery command. Its first argument is Click's context.

    Args:
        name: of the command.
        group: the group to which it is added, if any.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        callback: Callable[..., None] = click.pass_context(handle_preload_options(function))
        made: click.Command = click.command(name, cls=CeleryCommand)(callback)  # type: ignore[no-untyped-call]
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `--yes` was given.

    Raises:
        click.Abort: the user said no.
        click.UsageError: standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal: pass --yes to confirm")
    click.confirm(visible(question), abort=True, err=True)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError or TypeError from the inspector into a usage error: an option has a wrong value.

    Raises:
        click.UsageError: in place of the error.
    """
    try:
        yield
    except (TypeError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc


def import_tasks(app: Any) -> None:
    """Import the modules of all tasks, as a worker does when it starts: `autodiscover_tasks` leaves it until then.

    If that fails, the command warns and goes on without them: it may run where not all that tasks need is installed.
    """
    try:
        app.loader.import_default_modules()
    except Exception as exc:  # of any module of the app
        say(f"Warning: cannot import all tasks of the app: {type(exc).__name__}: {exc}", err=True)

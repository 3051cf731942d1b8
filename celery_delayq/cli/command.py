"""What all commands have in common: how Celery runs them, and how they end.

Exit codes: 0 done; 1 something was not found, nothing matched, or it failed; 2 wrong use, or --yes is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from celery_delayq.cli.plain import visible

#: What adds an option or argument to a function.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Give a command this option if machines may want its output.
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="For machines: JSON, one object a line.")

#: Give a command this option if it shows a message. By itself it shows what Celery would log: people hide secrets
#: from that with `argsrepr`.
body_option: Decorator = click.option(
    "--body", "with_body", is_flag=True, help="The body too, where it is JSON: all arguments in full."
)

#: Give a command this option if it destroys something; see `confirm`.
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")


def command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function with Click's options a command of Celery; its first argument is Click's context."""

    def decorate(function: Callable[..., None]) -> click.Command:
        callback: Callable[..., None] = click.pass_context(handle_preload_options(function))
        made: click.Command = click.command(name, cls=CeleryCommand)(callback)  # type: ignore[no-untyped-call]
        return made

    return decorate


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given.

    Raises:
        click.Abort: the answer is no.
        click.UsageError: there is no terminal to ask in.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to answer in: add --yes")
    click.confirm(visible(question), abort=True, err=True)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Take the ValueError of an inspector's method for a wrong value of an option.

    Raises:
        click.UsageError: instead of it.
    """
    try:
        yield
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def plural(number: int, noun: str = "task") -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

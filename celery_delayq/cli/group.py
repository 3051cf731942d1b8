"""The command group. Celery loads it for each of its own commands too, so it imports our commands only when called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

import click

from celery_delayq.basics.errors import DelayqError
from celery_delayq.cli.plain import visible


class Commands(click.Group):
    """A group that imports its commands when they are called or listed, and says what went wrong.

    Args:
        places: command name -> its place, as `module:attribute`.
    """

    def __init__(self, *args: Any, places: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, see `click.Group`."""
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, see `click.Group`; None if there is none of that name."""
        place = self._places.get(cmd_name)
        command: click.Command | None = None if place is None else resolve_name(place)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options of the group, see `click.Command`."""
        with _visible_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse the options of a command, and run it, see `click.Group`."""
        with _visible_errors():
            return super().invoke(ctx)


@contextmanager
def _visible_errors() -> Iterator[None]:
    """Turn our errors into messages, and make control characters in all of them visible.

    They may contain names from Redis, or user input.
    """
    try:
        yield
    except DelayqError as exc:
        raise click.ClickException(visible(exc)) from exc
    except click.ClickException as exc:
        keep = "\n" if isinstance(exc, click.UsageError) else ""  # a usage error may be the help text
        exc.message = visible(exc.message, keep)  # type: ignore[misc]  # final since click 8.5
        raise

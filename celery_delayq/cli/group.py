"""The group of all commands. Celery loads it for every command of its own, so it imports ours when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import click


class Commands(click.Group):
    """A group whose commands are imported when somebody calls or lists them.

    Args:
        places: name of a command -> where it is, as `module:attribute`.
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

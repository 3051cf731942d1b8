"""Plain lines that commands write. Nothing in them reaches the terminal as a command: names may come from anybody."""

from __future__ import annotations

import click


def visible(value: object, keep: str = "") -> str:
    r"""Return anything as text in which control characters can be seen, as `\x1b`.

    Args:
        value: what to show.
        keep: control characters that stay as they are.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def say(line: str, *, err: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    click.echo(visible(line), err=err)

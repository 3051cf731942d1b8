"""Plain output lines. Control characters are escaped, because names may come from an untrusted source."""

from __future__ import annotations

import sys

import click


def visible(value: object, keep: str = "") -> str:
    r"""Return a value as text, with control characters escaped, such as `\x1b`.

    Args:
        value: the value.
        keep: control characters that are not escaped.
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


def write(text: str) -> None:
    """Write text to standard output: for a reader as `say`, for a program as it is."""
    if sys.stdout.isatty():
        text = visible(text, keep="\n")
    click.echo(text, nl=False, color=True)

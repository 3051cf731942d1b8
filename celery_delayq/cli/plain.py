"""Plain output lines. Control characters are escaped, because names may come from an untrusted source."""

from __future__ import annotations

import sys

import click

from celery_delayq.basics.text import visible as visible


def say(line: str, *, err: bool = False) -> None:
    """Write a line to standard output, or to standard error."""
    click.echo(visible(line), err=err)


def write(text: str) -> None:
    """Write text to standard output: for a reader as `say`, for a program as it is."""
    if sys.stdout.isatty():
        text = visible(text, keep="\n")
    click.echo(text, nl=False, color=True)

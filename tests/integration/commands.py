"""Run `celery delayq ...` in this process."""

from __future__ import annotations

import inspect
import json

from celery import Celery
from click.testing import CliRunner, Result

from celery_delayq import cli

#: click before 8.2 mixes what goes to stderr with the rest.
_MIXES = "mix_stderr" in inspect.signature(CliRunner).parameters


class _Context:
    """What Celery gives its commands."""

    no_color = True

    def __init__(self, app: Celery) -> None:
        self.app = app


def delayq(app: Celery, *args: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(cli.delayq, args, obj=_Context(app))


def rows(result: Result) -> list[dict[str, object]]:
    """Return what a command with `--json` printed."""
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") or not _MIXES]

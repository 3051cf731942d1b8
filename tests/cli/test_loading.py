"""Celery loads our entry point for every command of its own, so that it must cost next to nothing."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from celery_delayq import cli

pytestmark = pytest.mark.on_cluster

#: Celery has click when it comes to the entry point.
LOAD = """
import sys, click
from importlib.metadata import entry_points

before = set(sys.modules)
(command,) = entry_points(group="celery.commands", name="delayq")
group = command.load()
group.get_short_help_str()  # what `celery --help` shows of it
print(*sorted(set(sys.modules) - before))
"""


def test_the_entry_point_loads_neither_commands_nor_what_they_need() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert not {"celery", "dateutil", "kombu", "redis", "rich"} & {name.partition(".")[0] for name in loaded}
    assert [name for name in loaded if name.startswith("celery_delayq")] == [
        "celery_delayq",
        "celery_delayq.basics",
        "celery_delayq.basics.errors",
        "celery_delayq.basics.text",
        "celery_delayq.basics.version",
        "celery_delayq.cli",
        "celery_delayq.cli.group",
        "celery_delayq.cli.plain",
    ]


def names() -> list[str]:
    return cli.delayq.list_commands(click.Context(cli.delayq))


@pytest.mark.parametrize("name", names())
def test_a_command_is_found_by_its_name(name: str) -> None:
    command = cli.delayq.get_command(click.Context(cli.delayq), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str()


def test_there_is_no_other() -> None:
    assert cli.delayq.get_command(click.Context(cli.delayq), "lists") is None

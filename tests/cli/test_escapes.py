"""What comes from Redis or from the user reaches the terminal as text, whatever a command writes."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue, cli
from celery_delayq.cli import broker
from celery_delayq.cli.output import console
from celery_delayq.cli.plain import visible
from celery_delayq.cli.transfer import VisibleFormatter
from celery_delayq.queue.keys import registry
from tests.cli.running import Command
from tests.integration.publishing import publish
from tests.state import FAR

pytestmark = pytest.mark.on_cluster

#: It sets the title of a terminal. Click removes colours where there is no terminal, but not this.
EVIL = "\x1b]0;title\x07"
SHOWN = r"\x1b]0;title\x07"

#: Commands that are given a bad name or id, or meet one in Redis; each says so in its error or its output.
CALLS = [
    ["list", "--queue", EVIL],
    ["list", "--queue", "unknown"],
    ["list", "--cursor", EVIL],
    ["list", "--due-after", EVIL],
    ["show", EVIL],
    ["cancel", EVIL],
    ["cancel", "--queue", EVIL],
    ["reschedule", EVIL, "--countdown", "1"],
    ["reschedule", "id", "--eta", EVIL],
    ["run-now", EVIL],
    ["release", "--yes", "--queue", EVIL],
    ["top", "--once", "--queue", EVIL],
    ["dead", "list", EVIL],
    ["dead", "show", "celery", EVIL],
    ["dead", "requeue", "celery", EVIL],
    ["export", f"/{EVIL}/no/such/folder"],
    ["import", f"/{EVIL}/no/such/file"],
    ["transfer", "-l", EVIL],
    ["orphans", "list"],
    ["orphans", "entries", EVIL],
    ["orphans", "adopt", EVIL],
    ["orphans", "adopt", "--all"],
    ["orphans", "adopt", "--all", "--task", EVIL],
    ["orphans", "adopt", "--all", "--codec", EVIL],
    ["schedule", "show", EVIL],
    ["schedule", "add", EVIL, EVIL, "30"],
    ["schedule", "add", "name", "task", EVIL],
    ["schedule", "pause", EVIL],
    ["schedule", "remove", EVIL],
    [EVIL],
    ["list", f"--{EVIL}"],
]


@pytest.fixture
def evil_queues(waiting: DelayedQueue, broker_client: redis.Redis) -> Iterator[None]:
    """A queue of a bad name that workers transfer, and an orphan."""
    broker_client.zadd(registry(), {f"queue{EVIL}": FAR})
    orphan = DelayedQueue(broker_client, f"orphan{EVIL}")
    broker_client.zadd(orphan.keys.timeout_set, {b"\x01x" + (4).to_bytes(8, "little") + b"text": 2_000_000_000_000})
    yield
    broker_client.zrem(registry(), f"queue{EVIL}", orphan.name)


@pytest.mark.usefixtures("evil_queues")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(call).replace(EVIL, "evil").replace("/", "_"))
def test_escapes_are_shown(command: Command, call: list[str]) -> None:
    done = command(*call)
    written = done.stdout + done.stderr
    assert "\x1b" not in written
    assert "\x07" not in written
    # Click 8.1 takes a command that begins with an escape for an option, and shows the help.
    assert "title" in written or written.startswith("Usage: ")


@pytest.mark.parametrize("name", [EVIL, "fine"])
def test_a_shell_is_offered_no_escapes(app: Celery, waiting: DelayedQueue, monkeypatch: Any, name: str) -> None:
    publish(app, queue=name)
    monkeypatch.setattr(broker, "find_app", lambda _: app)
    context: Any = cli.delayq.make_context("delayq", ["list"], resilient_parsing=True)
    context.find_root().params["app"] = "ignored"
    assert (name in broker.complete_queue(context, context.command.params, "")) == (name == "fine")
    waiting.client.zrem(registry(), name)


def test_what_transfer_logs_is_visible() -> None:
    record = logging.LogRecord("name", logging.ERROR, "path", 1, "of %s\nnext", (EVIL,), None)
    assert VisibleFormatter("%(message)s").format(record) == f"of {SHOWN}\nnext"


def test_visible_text_is_as_it_was() -> None:
    assert visible("naïve 任务 [red]") == "naïve 任务 [red]"
    assert visible("a\nb\u202e\x9b\udcff") == r"a\nb\u202e\x9b\udcff"
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize("no_color", [False, True])
def test_no_color_leaves_no_escapes_in_a_terminal(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # the file is taken for a terminal
    with click.Context(cli.delayq, obj=SimpleNamespace(no_color=no_color)):
        out = console()
    with out.capture() as captured:
        out.print("[bold]id[/bold]")
    assert ("\x1b" in captured.get()) != no_color


@pytest.mark.parametrize("file", sorted(Path(cli.__file__).parent.glob("*.py")), ids=lambda file: file.name)
def test_lines_are_written_in_one_place(file: Path) -> None:
    """Elsewhere, tables and progress are of `output.text`."""
    used = {node.attr for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
    assert not used & {"secho", "stderr", "stdout"} or file.name in {"backup.py", "plain.py"}  # the former opens `-`
    assert "echo" not in used or file.name == "plain.py"

"""Imports point one way, and importing does nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_delayq

PACKAGE = Path(celery_delayq.__file__).parent

#: From the lowest to the highest; a module imports only from below, and subpackages count as one.
LAYERS = [
    {"_version", "errors", "clock", "connections", "process", "keys", "codec", "times"},
    {"scripts"},
    {"entry", "dead_letters"},
    {"registry"},
    {"delayed_queue"},
    {"tidying", "orphans", "held"},
    {"transfer"},
    {"fetch_connection", "departure"},
    {"consumer", "presence"},
    {"watchdog"},
    {"settings", "server"},
    {"transport", "verdicts", "results"},
    {"config", "inspector", "task_message", "handover", "onlookers"},
    {"failures", "invalid_task", "revocation", "series"},
    {"bulk"},
    {"control", "schedule"},
    {"beat"},
    {"bootsteps", "panel", "cli"},
    {"app"},
    {"__init__"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}

#: In the lowest layer, modules may import each other, if not in a circle.
BASE = 0

MAY_IMPORT = {
    "kombu": {"transport", "task_message", "revocation", "bulk", "control", "schedule", "bootsteps", "cli", "app"},
    "celery": {
        *(
            "task_message",
            "onlookers",
            "revocation",
            "series",
            "bulk",
            "control",
            "handover",
            "verdicts",
            "schedule",
            "beat",
        ),
        *("bootsteps", "panel", "cli", "app", "results"),
    },
}

FILES = sorted(PACKAGE.rglob("*.py"))


def layer_module(file: Path) -> str:
    """Return which module of LAYERS a file belongs to."""
    first = file.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(file: Path) -> Iterator[str]:
    """Yield the full names of all modules that a file imports, wherever in it that is."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            assert node.module
            if node.module == PACKAGE.name:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_every_module_has_a_layer() -> None:
    assert {layer_module(file) for file in FILES} == set(RANK)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(file: Path) -> None:
    module = layer_module(file)
    for name in imported(file):
        package, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if package == PACKAGE.name and other != module:
            allowed = RANK[other] < RANK[module] or RANK[other] == RANK[module] == BASE
            assert allowed, f"{module} imports {name}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_kombu_and_celery_stay_where_they_belong(file: Path) -> None:
    for name in imported(file):
        allowed = MAY_IMPORT.get(name.partition(".")[0])
        assert allowed is None or layer_module(file) in allowed, f"{layer_module(file)}: {name}"


def run(code: str) -> None:
    """Run code in an interpreter of its own, in which warnings are errors; fail if it does."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_has_no_side_effects() -> None:
    """Nothing is registered with kombu, connected, started or logged."""
    modules = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in FILES]
    run(
        f"""
import logging, signal, socket, threading
from kombu.transport import TRANSPORT_ALIASES
from celery import signals

def refuse(*args, **kwargs):
    raise AssertionError("a socket was made")

aliases = dict(TRANSPORT_ALIASES)
handlers = {{number: signal.getsignal(number) for number in signal.valid_signals()}}
receivers = list(signals.task_received.receivers or ())
socket.socket.connect = socket.socket.bind = refuse

for module in {modules!r}:
    __import__(module)

assert TRANSPORT_ALIASES == aliases, TRANSPORT_ALIASES
assert handlers == {{number: signal.getsignal(number) for number in signal.valid_signals()}}
assert list(signals.task_received.receivers or ()) == receivers
assert threading.active_count() == 1, threading.enumerate()
assert not logging.getLogger().handlers
"""
    )


def test_the_redis_level_needs_neither_kombu_nor_celery() -> None:
    below = [module for layer in LAYERS[: RANK["settings"] + 1] for module in layer]
    run(
        f"""
import sys
from celery_delayq import DelayedQueue, DeadLetters, DelayqError
for module in {sorted(below)!r}:
    __import__("celery_delayq." + module)
found = {{name.partition(".")[0] for name in sys.modules}} & {{"kombu", "celery"}}
assert not found, found
"""
    )


def test_making_a_delayq_registers_its_schemes_and_connects_nothing() -> None:
    run(
        """
import socket
def refuse(*args, **kwargs):
    raise AssertionError("a socket was made")
socket.socket.connect = refuse

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES
from celery_delayq import DelayQ

app = Celery("shop", broker="delayq://nowhere.invalid:1/0")
for _ in range(2):
    DelayQ(app)
assert {"delayq", "delayqs", "delayq+sentinel"} <= TRANSPORT_ALIASES.keys()
assert len([step for step in app.steps["consumer"] if "celery_delayq" in step.__module__]) == 2
"""
    )

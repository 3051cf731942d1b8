"""Imports point one way, and importing does nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_delayq
from examples.private_redis import PrivateRedis

PACKAGE = Path(celery_delayq.__file__).parent

INTERNALS = PACKAGE.parent / "docs" / "dev" / "internals.md"

#: Rooms from the highest to the lowest, as the list in docs/dev/internals.md has them: "    queue/    what it is".
ROOMS = re.findall(r"^    ([a-z_]+)(?:/|\.py)  ", INTERNALS.read_text("utf-8"), re.MULTILINE)

FILES = sorted(PACKAGE.rglob("*.py"))

#: Rooms that know neither Celery nor kombu.
REDIS_ONLY = ["queue", "transfer", "fetching"]


def room_of(name: str) -> str:
    """Return the room of a module's full name."""
    return [*name.split("."), "__init__"][1]


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


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_below_it(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    below = {room, *ROOMS[ROOMS.index(room) + 1 :]}
    for name in imported(file):
        assert not name.startswith(PACKAGE.name) or room_of(name) in below, f"{room} imports {name}"


#: How many pairs of rooms there are, at most, of which one imports the other.
MOST_PAIRS = 98


def test_few_rooms_import_each_other() -> None:
    pairs = {
        (file.relative_to(PACKAGE).parts[0].removesuffix(".py"), room_of(name))
        for file in FILES
        for name in imported(file)
        if name.startswith(f"{PACKAGE.name}.")
    }
    arrows = sorted(f"{room} -> {other}" for room, other in pairs if room != other)
    print(f"{len(arrows)} imports between rooms:", *arrows, sep="\n")
    assert len(arrows) <= MOST_PAIRS


def run(code: str) -> str:
    """Run code in an interpreter of its own, in which warnings are errors; fail if it does, or return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_has_no_side_effects() -> None:
    """Nothing is connected, started or logged, and kombu knows no transport more: it only says what is missing.

    An app for Django needs Django set up.
    """
    modules = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in FILES]
    run(
        f"""
import logging, signal, socket, threading
from kombu.transport import TRANSPORT_ALIASES, get_transport_cls
from celery_delayq import ConfigurationError
from celery import signals

def refuse(*args, **kwargs):
    raise AssertionError("a socket was made")

aliases = dict(TRANSPORT_ALIASES)
handlers = {{number: signal.getsignal(number) for number in signal.valid_signals()}}
receivers = list(signals.task_received.receivers or ())
socket.socket.connect = socket.socket.bind = refuse

import django.conf
apps = ["django.contrib." + name for name in ("admin", "auth", "contenttypes", "messages", "sessions")]
django.conf.settings.configure(INSTALLED_APPS=[*apps, "celery_delayq.contrib.django"])
django.setup()

for module in {modules!r}:
    __import__(module)

for scheme in TRANSPORT_ALIASES.keys() - aliases.keys():
    try:
        get_transport_cls(scheme)
    except ConfigurationError:
        del TRANSPORT_ALIASES[scheme]
assert TRANSPORT_ALIASES == aliases, TRANSPORT_ALIASES
assert handlers == {{number: signal.getsignal(number) for number in signal.valid_signals()}}
assert list(signals.task_received.receivers or ()) == receivers
assert threading.active_count() == 1, threading.enumerate()
assert not logging.getLogger().handlers
"""
    )


def test_the_redis_rooms_need_neither_kombu_nor_celery() -> None:
    modules = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in FILES]
    run(
        f"""
import sys
from celery_delayq import DelayedQueue, DeadLetters, DelayqError
for module in {[module for module in modules if room_of(module) in REDIS_ONLY]!r}:
    __import__(module)
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
assert len([step for step in app.steps["consumer"] if step.startswith("celery_delayq.")]) == 2
"""
    )


#: Rooms, and modules of rooms, that a producer needs not.
NOT_FOR_PRODUCERS = (
    *("beat", "cli", "contrib", "fetching", "health", "inspector", "metrics", "schedule", "testing", "web", "worker"),
    *("cluster.client", "publishing.broadcast", "publishing.revocation", "transfer.loop", "transport.fetchers"),
)

#: How many modules more it may load than one with kombu's own transport.
MOST_MODULES = 60

PRODUCER = """
import sys
from celery import Celery

app = Celery("shop", broker="{scheme}://127.0.0.1:{port}/0")
if "{scheme}" == "delayq":
    from celery_delayq import DelayQ
    DelayQ(app)

@app.task
def remind():
    pass

with app.connection_for_write() as connection:
    connection.ensure_connection()
    if {publishes}:
        with app.amqp.Producer(connection) as producer:
            remind.apply_async(producer=producer, countdown=60)
print(*sys.modules)
"""


@pytest.mark.parametrize("publishes", [False, True])
def test_a_producer_loads_only_what_a_producer_needs(redis_server: PrivateRedis, publishes: bool) -> None:
    stock, ours = (
        set(run(PRODUCER.format(scheme=scheme, port=redis_server.port, publishes=publishes)).split())
        for scheme in ("redis", "delayq")
    )
    prefixes = tuple(f"{PACKAGE.name}.{name}" for name in NOT_FOR_PRODUCERS)
    assert not sorted(name for name in ours if name.startswith(prefixes))
    assert len(ours - stock) <= MOST_MODULES, sorted(ours - stock)

"""A process that uses a `delayq://` URL without `DelayQ(app)` says what is missing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from kombu.exceptions import SerializerNotInstalled
from kombu.serialization import dumps, loads

from celery_delayq.schemes.uncalled import NotCalled
from tests.support import run_with_app

_APP = """
from celery import Celery
app = Celery("shop", broker="delayq://nowhere.invalid:1/0")

@app.task
def pay(): ...
"""

_ADVICE = "delayq = DelayQ(app)"


def run(folder: Path, *arguments: str, app: str = _APP) -> str:
    """Run Python in a folder with an app `shop`; it fails. Return what it says."""
    done = run_with_app(folder, app, *arguments)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


@pytest.mark.parametrize("command", ["worker", "beat", "purge -f", "call shop.pay", "status", "inspect ping", "report"])
def test_a_command_of_celery_says_it_without_a_traceback(tmp_path: Path, command: str) -> None:
    said = run(tmp_path, "-m", "celery", "-A", "shop", *command.split())
    assert _ADVICE in said
    assert "Traceback" not in said


@pytest.mark.parametrize("scheme", ["delayqs", "delayq+sentinel", "delayq+cluster", "delayq+socket"])
def test_it_holds_for_all_our_urls(tmp_path: Path, scheme: str) -> None:
    said = run(tmp_path, "-m", "celery", "-b", f"{scheme}://nowhere.invalid:1", "-A", "shop", "status")
    assert _ADVICE in said


@pytest.mark.parametrize("first", ["", "from celery_delayq import DelayQ"])
def test_a_producer_says_it_also_if_it_imports_nothing_of_this_package(tmp_path: Path, first: str) -> None:
    said = run(tmp_path, "-c", "import shop; shop.pay.apply_async(countdown=60)", app=first + _APP)
    assert "celery_delayq.schemes.uncalled.NotCalled: the broker URL" in said
    assert _ADVICE in said


def test_a_producer_of_kombu_says_it(tmp_path: Path) -> None:
    said = run(tmp_path, "-c", "import kombu; kombu.Producer(kombu.Connection('delayq://nowhere.invalid:1/0'))")
    assert _ADVICE in said


def test_a_pool_of_processes_can_pass_the_error_on() -> None:
    copy = pickle.loads(pickle.dumps(NotCalled()))
    assert _ADVICE in str(copy)
    assert copy.format_message() == NotCalled().format_message()


def test_all_that_every_process_loads_for_it_is_next_to_nothing() -> None:
    code = """
import sys, kombu.transport
before = set(sys.modules)
import kombu.serialization
print(*sorted(name for name in set(sys.modules) - before if "delayq" in name or name == "click"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [
        "celery_delayq",
        "celery_delayq.basics",
        "celery_delayq.basics.version",
        "celery_delayq.schemes",
    ]


@pytest.mark.parametrize("serializer", ["delayq", "application/x-celery-delayq-none"])
def test_kombu_has_no_serializer_of_our_name(serializer: str) -> None:
    with pytest.raises(SerializerNotInstalled):
        dumps({}, serializer=serializer)
    assert loads(b"{}", serializer, "utf-8") == loads(b"{}", "application/x-nobody", "utf-8")


def test_a_call_that_comes_late_is_early_enough(tmp_path: Path) -> None:
    code = """
from celery_delayq import ConfigurationError, DelayQ
import shop
from kombu.transport import get_transport_cls
try:
    shop.pay.delay()
except ConfigurationError:
    DelayQ(shop.app)
    raise SystemExit(get_transport_cls(shop.app.connection().transport_cls).__module__)
"""
    assert run(tmp_path, "-c", code).strip() == "celery_delayq.transport"

"""A forked `celery` process is like one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forking
from tests.forking import Forked
from tests.processes import descriptors
from tests.support import wait_until

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}

Start = Callable[..., Forked]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, nothing is forked")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "celery", *arguments]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a command in a folder of its own, with its output in a file there."""

    def do(*arguments: str, **more: str) -> Forked:
        with Path(tmp_path, "log").open("ab") as log:
            return forking.start(command(*arguments), env={**ENV, **more}, cwd=str(tmp_path), output=log.fileno())

    return do


@pytest.mark.parametrize(("arguments", "status", "text"), [(["--version"], 0, "5."), (["nonsense"], 2, "nonsense")])
def test_it_has_output_and_an_exit_status(
    start: Start, tmp_path: Path, arguments: list[str], status: int, text: str
) -> None:
    assert start(*arguments).wait(30) == status
    assert text in Path(tmp_path, "log").read_text()


def test_it_has_nothing_of_another_one(start: Start, tmp_path: Path) -> None:
    """But for standard input, output and errors."""
    # In one write: unbuffered, `print` takes two, and the other one may write between them.
    module = 'import os, signal\nos.write(1, os.environ["MINE"].encode() + b" ")\nsignal.pause()\n'
    Path(tmp_path, "waiting.py").write_text(module)
    others = [start("-A", "waiting", "report", MINE=mine) for mine in ("a", "b")]
    wait_until(lambda: set(Path(tmp_path, "log").read_text().split()) == {"a", "b"}, "both wait")
    for one in others:
        assert os.getsid(one.pid) == one.pid
        assert Path(f"/proc/{one.pid}/cwd").resolve() == tmp_path
        # libffi keeps its own file open.
        inherited = {number for number, what in descriptors(one.pid).items() if "libffi" not in what}
        assert inherited == {0, 1, 2}
    with pytest.raises(subprocess.TimeoutExpired):
        others[0].wait(0.01)
    for one, number in zip(others, (signal.SIGTERM, signal.SIGKILL), strict=True):
        os.kill(one.pid, number)
        assert one.wait(30) == one.poll() == -number


@pytest.mark.parametrize("env", [{"PYTHONHASHSEED": "1"}, {"LD_PRELOAD": "/nowhere.so"}, {"PYTHONPATH": "/nowhere"}])
def test_what_needs_another_interpreter_is_not_forked(env: dict[str, str]) -> None:
    assert forking.can_fork(command("report"), ENV)
    assert not forking.can_fork(command("report"), {**ENV, **env})


def test_what_has_to_patch_before_the_first_import_is_not_forked() -> None:
    assert not forking.can_fork(command("worker", "--pool=gevent"), ENV)
    assert not forking.can_fork([sys.executable, "-m", "flask"], ENV)

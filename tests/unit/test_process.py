"""Which process made a consumer, and whether it runs: what this process can know, and what it cannot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_delayq.fetching import process
from celery_delayq.fetching.process import consumer_id, is_at_work, is_consumer, is_running
from celery_delayq.queue.connections import name_process, new_id, process_of
from tests.support import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells where a process runs")


class Other:
    """A process that does nothing, and the id that a consumer of it would have."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([shutil.which("sleep") or "sleep", "60"])
        wait_until(lambda: self.state() == "S", "it sleeps")
        place = consumer_id().rpartition(":")[2].split("-")[0]
        self.id = f"host:{self.process.pid}:{place}-{int(self.fields()[19]):x}-abcdef"

    def fields(self) -> list[str]:
        """What Linux says of it, from its state on."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()

    def state(self) -> str:
        return self.fields()[0]


@pytest.fixture
def other() -> Iterator[Other]:
    other = Other()
    with other.process:
        yield other
        other.process.kill()


def test_an_id_says_host_and_process_and_is_unique() -> None:
    id = consumer_id()
    assert id.startswith(new_id().rpartition(":")[0] + ":")
    assert id != consumer_id()
    assert len(id.rpartition(":")[2]) < 36


def test_this_process_runs() -> None:
    assert is_running(consumer_id()) is True


def test_another_process_runs_until_it_is_killed(other: Other) -> None:
    assert is_running(other.id) is True
    other.process.kill()
    wait_until(lambda: other.state() == "Z", "it is a zombie, since nobody has asked for its status")
    assert is_running(other.id) is False
    other.process.wait()
    assert is_running(other.id) is False


def test_a_suspended_process_runs(other: Other) -> None:
    other.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: other.state() == "T", "it is suspended")
    assert is_running(other.id) is True
    assert is_at_work(other.id) is False
    other.process.send_signal(signal.SIGCONT)
    wait_until(lambda: is_at_work(other.id), "it goes on")


def test_a_process_that_has_its_number_is_another_one(other: Other) -> None:
    """The start time tells."""
    process_id, _, rest = consumer_id().rpartition(":")
    place, _, unique = rest.split("-")
    assert is_running(f"{process_id}:{place}-1-{unique}") is False


def test_a_child_is_not_its_parent() -> None:
    """What a parent has made is the parent's, also as a forked child sees it; what the child makes is its own."""
    code = """
import os
from celery_delayq.fetching.process import consumer_id, is_running
parents = consumer_id()
read, write = os.pipe()
if not os.fork():
    os.write(write, consumer_id().encode())
    os._exit(0 if is_running(parents) else 1)
child, status = os.wait()
childs = os.read(read, 200).decode()
print(status, is_running(parents), is_running(childs), f":{child}:" in childs)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["0", "True", "False", "True"], done.stderr


@pytest.mark.parametrize(
    "id",
    [
        pytest.param(f"host:{os.getpid()}:0123456789-1-abcdef", id="another place"),
        pytest.param(new_id(), id="made before ids said it"),
        pytest.param("host:1:me", id="no process"),
        pytest.param("", id="empty"),
        pytest.param("host:99999999999999999999:0123456789-1-a", id="too large"),
    ],
)
def test_of_others_it_knows_nothing(id: str) -> None:
    assert is_running(id) is None
    assert is_at_work(id) is None


@pytest.mark.parametrize("missing", ["_BOOT", "_NAMESPACES"])
def test_without_proc_an_id_says_less(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    before = consumer_id()
    nowhere = Path("/nowhere/at/all")
    monkeypatch.setattr(process, missing, nowhere if missing == "_BOOT" else (nowhere, nowhere))
    assert is_running(before) is None
    after = consumer_id()
    assert ("-" in after.rpartition(":")[2]) is (missing == "_NAMESPACES")


def test_another_users_process_that_proc_hides_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hidepid`: the system says that there is such a process, and nothing else."""
    id = consumer_id()

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    def hide(path: Path) -> bytes:
        if path.name == "stat":
            raise FileNotFoundError
        return read(path)

    read = Path.read_bytes
    monkeypatch.setattr(process.os, "kill", refuse)
    monkeypatch.setattr(Path, "read_bytes", hide)
    assert is_running(id) is None


@pytest.mark.parametrize(
    ("id", "process"),
    [
        ("web-1:4711:0123456789-ab-cd", ("web-1", 4711)),
        ("web-1:4711:abc", ("web-1", 4711)),
        ("fe80::1:4711:abc", ("fe80::1", 4711)),
        ("web-1:4711", ("web-1:4711", None)),
        ("web-1:pid:abc", ("web-1:pid:abc", None)),
        ("", ("", None)),
    ],
)
def test_an_id_names_its_process(id: str, process: tuple[str, int | None]) -> None:
    assert process_of(id) == process


def test_the_ids_of_this_process_name_it() -> None:
    assert process_of(consumer_id()) == process_of(new_id())
    assert process_of(new_id())[1] == os.getpid()


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        ("celery@host", "celery@host"),
        ("a:b{c}@hést", "a_b_c_@h_st"),  # no colons, no hash tags, no bytes that a key would have to escape
        ("n" * 300 + "@host", "n" * 200),
    ],
)
def test_a_worker_has_the_name_of_its_node(node: str, shown: str) -> None:
    name_process(node)
    try:
        for id in (new_id(), consumer_id()):
            assert process_of(id) == (shown, os.getpid())
            assert is_consumer(id)
        assert is_running(consumer_id()) is not False
    finally:
        name_process("")

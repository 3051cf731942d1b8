"""Native threads: a loop that runs while it is needed; errands, which are done in order, and nobody waits for them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from celery_delayq.basics.native import Errands, NativeLoop
from tests.support import wait_until


def test_they_are_done_in_order_in_one_thread_at_a_time() -> None:
    errands = Errands()
    done: list[tuple[int, int]] = []
    begins = threading.Event()
    errands.add(lambda: begins.wait(20))
    for number in range(100):
        errands.add(lambda number=number: done.append((number, threading.get_ident())))
    begins.set()
    wait_until(lambda: len(done) == 100, "all are done")
    assert [number for number, _ in done] == list(range(100))
    assert len({thread for _, thread in done}) == 1


def test_an_error_ends_none_of_the_others() -> None:
    errands = Errands()
    done: list[int] = []

    def fail() -> None:
        raise SystemExit("of a user's function")

    for _ in range(3):
        errands.add(fail)
        errands.add(lambda: done.append(1))
    wait_until(lambda: len(done) == 3, "the others are done")


def test_too_many_are_dropped() -> None:
    errands = Errands(most=2)
    done: list[int] = []
    begins = threading.Event()
    begun = threading.Event()

    def first() -> None:
        begun.set()
        begins.wait(20)

    errands.add(first)
    assert begun.wait(20)
    for number in range(5):
        errands.add(lambda number=number: done.append(number))
    begins.set()
    wait_until(lambda: done == [0, 1], "those that have room are done")


_MANY_THREADS = """
from gevent import monkey; monkey.patch_all()
import os, time
from celery_delayq.basics.native import Errands

def is_open():
    return len(os.listdir("/proc/self/fd"))

time.sleep(0)  # with the hub of this thread
before, errands = is_open(), Errands()
for _ in range(10):
    errands.add(lambda: time.sleep(0.001))
    errands.finish()
until = time.monotonic() + 20
while is_open() > before:
    assert time.monotonic() < until, is_open()
    time.sleep(0.01)
"""


def test_threads_beside_greenlets_leave_no_descriptors() -> None:
    subprocess.run([sys.executable, "-c", _MANY_THREADS], check=True, timeout=60)


_FEW_DESCRIPTORS = """
from gevent import monkey; monkey.patch_all()
import os, resource, sys, time
from celery_delayq.basics.descriptors import close
from celery_delayq.basics.native import Errands

time.sleep(0)  # with the hub of this thread
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken, done, errands = [], [], Errands()
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    close(*taken[:int(sys.argv[1])])
errands.add(lambda: done.append(1))
assert not done
close(*taken[int(sys.argv[1]):])
errands.add(lambda: done.append(2))
errands.finish()
assert done == [1, 2], done
"""


@pytest.mark.parametrize("free", [0, 1, 3])
def test_a_process_with_greenlets_and_no_descriptors_goes_on(free: int) -> None:
    """The library below gevent aborts it when a thread cannot have some."""
    program = [sys.executable, "-c", _FEW_DESCRIPTORS, str(free)]
    subprocess.run(program, stdin=subprocess.DEVNULL, check=True, timeout=60)


def test_a_loop_that_fails_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    left = [ValueError("a fault"), None]

    def run() -> None:
        error = left.pop(0)
        if error:
            raise error

    loop = NativeLoop(run, lambda: left)
    loop.begin()
    loop.wait(lambda: not loop.runs, 20)
    assert not left
    assert "a fault" in caplog.text

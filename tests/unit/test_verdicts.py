"""Whether a job may begin: what a forked child sees of its parent's verdicts."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from celery.exceptions import Reject

from celery_delayq import verdicts
from celery_delayq.verdicts import Job, Verdicts, share_verdicts
from tests.support import wait_until


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Verdicts:
    """Verdicts that jobs in this process look at, as if it were a child."""
    monkeypatch.setattr(verdicts, "_verdicts", None)
    made = share_verdicts()
    monkeypatch.setattr(verdicts.os, "getppid", lambda: made._parent)
    return made


def late_job(number: int) -> Job:
    """A job that is begun too late to be sure; it returns what it is called with."""
    return pickle.loads(pickle.dumps(Job(str, number, time.monotonic() - 1)))


def test_a_job_that_begins_in_time_asks_nobody(shared: Verdicts) -> None:
    assert Job(str, 1, math.inf)(7) == "7"


@pytest.mark.parametrize("number", [1, 2**40])
def test_a_late_one_does_what_its_worker_says(shared: Verdicts, number: int) -> None:
    shared.give(os.getpid(), number, may_begin=True)
    assert late_job(number)(7) == "7"
    shared.give(os.getpid(), number, may_begin=False)
    with pytest.raises(Reject) as refused:
        late_job(number)(7)
    assert refused.value.requeue is True


@pytest.mark.parametrize("may_begin", [True, False])
def test_what_is_foretold_of_the_next_job_leaves_that_of_this_one(shared: Verdicts, may_begin: bool) -> None:
    shared.give(os.getpid(), 8, may_begin=True)
    shared.give(os.getpid(), 9, may_begin=may_begin, foretold=True)
    assert shared.wait(8)
    assert shared.wait(9) is may_begin


@pytest.mark.parametrize("may_begin", [True, False])
def test_it_waits_for_its_own_verdict(shared: Verdicts, may_begin: bool) -> None:
    answers: list[str] = []

    def run() -> None:
        try:
            answers.append(late_job(9)(7))
        except Reject:
            answers.append("refused")

    shared.give(os.getpid(), 8, may_begin=not may_begin)  # of the job before
    thread = threading.Thread(target=run)
    thread.start()
    shared.give(os.getpid() + 1, 9, may_begin=not may_begin)  # of another child
    assert not answers
    shared.give(os.getpid(), 9, may_begin=may_begin)
    wait_until(lambda: answers, "it has its verdict")
    thread.join()
    assert answers == ["7" if may_begin else "refused"]


def test_it_does_not_wait_for_ever(shared: Verdicts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has given up, its worker does not accept later: it would acknowledge what has not run."""
    monkeypatch.setattr(verdicts, "_LONGEST_WAIT_S", 0.01)
    with pytest.raises(Reject) as refused:
        late_job(9)(7)
    assert refused.value.requeue is True
    assert not shared.begin(os.getpid(), 9)
    assert shared.begin(os.getpid(), 10)


def test_it_waits_for_a_worker_that_is_about_to_decide(shared: Verdicts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_LONGEST_WAIT_S", 0.01)
    assert shared.begin(os.getpid(), 9)
    threading.Timer(0.1, lambda: shared.give(os.getpid(), 9, may_begin=True)).start()
    assert late_job(9)(7) == "7"


def test_a_worker_and_its_child_agree_on_what_was_given_up() -> None:
    """Whichever is faster: a job is either given up, or decided on."""
    code = """
import os, random, time
from celery_delayq import verdicts

verdicts._LONGEST_WAIT_S = 0.001
shared = verdicts.Verdicts()
turns, take_turn = os.pipe()
said, say = os.pipe()
child = os.fork()
for number in range(1, 401):
    if not child:
        os.read(turns, 1)
        os.write(say, b"y" if shared.wait(number) else b"n")
        continue
    os.write(take_turn, b"x")
    time.sleep(random.uniform(0, 0.004))
    decides = shared.begin(child, number)
    if decides:
        shared.give(child, number, may_begin=True)
    print(decides, os.read(said, 1) == b"y")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    found = Counter(done.stdout.splitlines())
    assert found.keys() == {"True True", "False False"}, done.stderr


def test_without_verdicts_a_job_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a child that was spawned, and not forked."""
    monkeypatch.setattr(verdicts, "_verdicts", None)
    assert late_job(1)(7) == "7"


def test_a_forked_child_sees_them_and_gives_up_when_its_parent_has_ended() -> None:
    code = """
import os, time
from celery.exceptions import Reject
from celery_delayq.verdicts import Job, share_verdicts

def begin(number):
    try:
        return Job(str, number, time.monotonic() - 1)("began")
    except Reject as refused:
        return "refused"

shared = share_verdicts()
told, tell = os.pipe()
child = os.fork()
if not child:
    print(begin(1), flush=True)
    os.write(tell, b"x")
    print(begin(2), flush=True)
    os.write(tell, b"x")
    print(begin(3), flush=True)  # its parent ends without a word
else:
    shared.give(child, 1, may_begin=True)
    os.read(told, 1)
    shared.give(child, 2, may_begin=False)
    os.read(told, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["began", "refused", "refused"], done.stderr

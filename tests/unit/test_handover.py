"""Which jobs of Celery's prefork pool a child process has been given, and whether it may begin them late."""

from __future__ import annotations

import math
import os
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq import handover
from celery_delayq import verdicts as verdicts_module
from celery_delayq.handover import _BeginInChild, _written
from celery_delayq.verdicts import Job, Verdicts


def job(*, child: object = None) -> Any:
    """A job of billiard's, as far as it is looked at."""
    return SimpleNamespace(_write_to=child)


def test_one_for_which_no_child_had_room_is_not_written() -> None:
    written, waits = job(child="a process"), job()
    pool: Any = SimpleNamespace(_cache={1: written, 2: waits}, outbound_buffer=deque([waits]))
    assert _written(pool) == {1: written}


def test_one_whose_child_died_before_it_read_is_not_written_any_more() -> None:
    """The pool has put it back into its buffer, and not forgotten the child."""
    back = job(child="a process that has ended")
    pool: Any = SimpleNamespace(_cache={1: back}, outbound_buffer=deque([back]))
    assert _written(pool) == {}


class Request:
    """A request of Celery's, as far as it is looked at."""

    def __init__(self, *, acks_late: bool) -> None:
        self.message: Any = SimpleNamespace(channel=None, acknowledged=False, headers={})
        self._acks_late = acks_late

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.message.acknowledged = not self._acks_late


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_child_that_was_suspended_as_it_began_leaves_what_others_may_have(acks_late: bool) -> None:
    """Its worker saw it begin in time. What is acknowledged is nobody else's, and would be lost."""
    verdicts, child = Verdicts(), os.getpid()
    begin = _BeginInChild(Request(acks_late=acks_late).on_accepted, Job(print, 7, sure_until=10.0), verdicts)
    begin(child, 9.0)
    verdicts._parent = os.getppid()  # this process is the child, too
    assert verdicts.wait(7) is not acks_late


@pytest.mark.parametrize("came_too_late", [True, False])
@pytest.mark.parametrize("accepted_at", [9.0, 11.0])
def test_it_does_not_begin_what_its_worker_acknowledged_too_late(
    accepted_at: float, came_too_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was suspended, too, before it acknowledged the message."""
    monkeypatch.setattr(handover, "_sure_until", lambda message: 0.0)
    monkeypatch.setattr(handover, "_came_too_late", lambda message: came_too_late)
    verdicts, child = Verdicts(), os.getpid()
    begin = _BeginInChild(Request(acks_late=False).on_accepted, Job(print, 7, sure_until=10.0), verdicts)
    begin(child, accepted_at)
    verdicts._parent = os.getppid()
    assert verdicts.wait(7) is not came_too_late


@pytest.mark.parametrize("accepted_at", [9.0, 11.0])
def test_nor_does_it_begin_what_others_have(accepted_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_is_held", lambda message, ask=True: False)
    verdicts, child = Verdicts(), os.getpid()
    begin = _BeginInChild(Request(acks_late=False).on_accepted, Job(print, 7, sure_until=10.0), verdicts)
    begin(child, accepted_at)
    verdicts._parent = os.getppid()
    assert not verdicts.wait(7)


def test_a_child_that_begins_late_may_begin_what_is_still_its_workers() -> None:
    verdicts, child = Verdicts(), os.getpid()
    begin = _BeginInChild(Request(acks_late=True).on_accepted, Job(print, 7, sure_until=10.0), verdicts)
    begin(child, math.inf)
    verdicts._parent = os.getppid()
    assert verdicts.wait(7)


@pytest.mark.parametrize("accepted_at", [9.0, 11.0])
def test_what_a_child_has_given_up_is_not_accepted(accepted_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be acknowledged, and nobody would run it."""
    monkeypatch.setattr(verdicts_module, "_LONGEST_WAIT_S", 0.0)
    verdicts, child, request = Verdicts(), os.getpid(), Request(acks_late=False)
    verdicts._parent = os.getppid()  # this process is the child, too
    assert not verdicts.wait(7)
    _BeginInChild(request.on_accepted, Job(print, 7, sure_until=10.0), verdicts)(child, accepted_at)
    assert not request.message.acknowledged

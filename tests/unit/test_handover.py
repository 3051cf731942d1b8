"""Which jobs of Celery's prefork pool a child process has been given."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from celery_delayq.handover import _written


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

"""A planner in the process of the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery

from celery_delayq.schedule.service import planner_loop


@contextmanager
def planning(app: Celery) -> Iterator[None]:
    """Plan in this process."""
    loop = planner_loop(app)
    loop.start()
    try:
        yield
    finally:
        loop.stop()

"""Times of the Python API are datetimes; spans are timedeltas, or seconds. No name has another unit in it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from contextlib import suppress
from typing import Any

import pytest

import celery_delayq
from celery_delayq.inspector.consumers import Lease
from celery_delayq.inspector.counts import QueueCounts
from celery_delayq.inspector.histogram import Bucket
from celery_delayq.inspector.history import Point
from celery_delayq.queue.entry import Position
from celery_delayq.queue.ready import Place, Slice
from celery_delayq.queue.scripts import Transferred

PUBLIC = {name: getattr(celery_delayq, name) for name in celery_delayq.__all__}
PARTS = {one.__name__: one for one in (Bucket, Lease, Place, Point, Position, QueueCounts, Slice, Transferred)}


def attributes_of(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}


def parameters_of(found: Any) -> set[str]:
    """Return the parameters of the public methods of a class, and of itself unless it is a dataclass."""
    parameters: set[str] = set()
    for one in (found, *attributes_of(found).values()):
        if callable(one) and not dataclasses.is_dataclass(one):
            with suppress(ValueError):  # a builtin
                parameters.update(inspect.signature(one).parameters)
    return parameters


def test_parameters_are_found() -> None:
    assert {"eta", "countdown", "timeout", "due_after", "mirror_list"} <= parameters_of(celery_delayq.DelayedQueue)


@pytest.mark.parametrize("name", [*PUBLIC, *PARTS])
def test_nothing_public_is_in_another_unit_than_seconds(name: str) -> None:
    found = {**PUBLIC, **PARTS}[name]
    fields = {one.name for one in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    assert not [one for one in {*attributes_of(found), *fields} if re.search("_(us|ms)$", one)]
    assert not [one for one in parameters_of(found) if re.search("_(us|ms|s)$", one)]

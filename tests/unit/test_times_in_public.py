"""Times of the Python API are datetimes; spans are timedeltas, or seconds. No public attribute is in ms."""

from __future__ import annotations

import dataclasses

import pytest

import celery_delayq
from celery_delayq.inspector.consumers import Lease
from celery_delayq.inspector.counts import QueueCounts
from celery_delayq.inspector.histogram import Bucket
from celery_delayq.inspector.history import Point

#: They are near to Redis, as docs/reference/api.md says.
WITHOUT_CELERY = {"DelayedQueue", "Entry"}

PUBLIC = {name: getattr(celery_delayq, name) for name in celery_delayq.__all__ if name not in WITHOUT_CELERY}
PARTS = {one.__name__: one for one in (Bucket, Lease, Point, QueueCounts)}


@pytest.mark.parametrize("name", [*PUBLIC, *PARTS])
def test_nothing_public_is_in_ms(name: str) -> None:
    found = {**PUBLIC, **PARTS}[name]
    fields = {one.name for one in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    assert not [one for one in {*dir(found), *fields} if one.endswith("_ms") and not one.startswith("_")]

"""A node that hangs is not asked again by everybody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_delayq.cluster import hanging
from celery_delayq.cluster.node import Address

NODE = Address("node", 1)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    hanging.answers(NODE)


def test_a_node_may_be_asked_until_it_hangs() -> None:
    assert hanging.may_ask(NODE)
    hanging.hangs(NODE)
    assert not hanging.may_ask(NODE)
    assert hanging.is_avoided(NODE)
    hanging.answers(NODE)
    assert hanging.may_ask(NODE)
    assert not hanging.is_avoided(NODE)


def test_one_caller_tries_it_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "FOR_S", -1.0)
    hanging.hangs(NODE)
    assert [hanging.may_ask(NODE) for _ in range(3)] == [True, False, False]


def test_a_node_that_is_late_is_avoided_but_may_be_asked() -> None:
    hanging.is_late(NODE)
    assert hanging.is_avoided(NODE)
    assert hanging.may_ask(NODE)
    hanging.is_not_late(NODE)
    assert not hanging.is_avoided(NODE)

"""NodesWatch: nodes may be lost at any moment."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.cluster.topology import Topology
from celery_delayq.transport.watch import NodesWatch
from tests.support import wait_until


def test_another_node_is_lost_while_it_asks_the_first(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (node.address for node in topology.masters()[:2])
    watch = NodesWatch(topology, lambda: None)
    answers = topology.answers

    def lose_another(*args: Any) -> bool:
        if first_time:
            first_time.pop()
            watch.lose(second)
        return answers(*args)

    first_time = [True]
    monkeypatch.setattr(topology, "answers", lose_another)
    watch.lose(first)
    watch.start()
    try:
        wait_until(lambda: not first_time and not watch.is_lost(first), "the first one is back")
        wait_until(lambda: not watch.is_lost(second), "so is the other one")
    finally:
        watch.stop()
    assert "interrupted" not in caplog.text

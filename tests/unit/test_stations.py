"""Stations: who fetches at a server, and who did so before."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from celery_delayq.transport.stations import Stations


def test_who_hears_late_that_a_node_was_lost_leaves_its_new_consumer_alone() -> None:
    retired: list[int] = []

    def station(number: int) -> Any:
        return SimpleNamespace(
            consumer=SimpleNamespace(is_done=True, number=number), retire=partial(retired.append, number)
        )

    stations = Stations()
    lost = stations.at("node", partial(station, 1)).consumer
    stations.retire("node", lost)
    stations.at("node", partial(station, 2))
    stations.retire("node", lost)  # another channel's fetcher
    assert retired == [1]
    assert stations.at("node", partial(station, 3)).consumer in stations.consumers

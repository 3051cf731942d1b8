"""What strikes a cluster, and how its publisher publishes."""

from __future__ import annotations

import pytest

from examples.private_redis import PrivateRedis
from tests.soak import cluster
from tests.soak.cluster import STRIKES, ClusterScene
from tests.soak.faults import FAULTS, STOCK_FAULTS
from tests.soak.publisher import Publisher
from tests.soak.setting import Setting
from tests.support import wait_until
from tests.worker_app import publisher


def test_everything_strikes_once_before_anything_strikes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "has_faketime", lambda: True)
    scene = ClusterScene(Setting())
    for _ in range(2):
        assert sorted(scene.next_turn() for _ in STRIKES) == sorted(STRIKES)


def test_without_faketime_all_clocks_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "has_faketime", lambda: False)
    scene = ClusterScene(Setting())
    assert {scene.next_turn() for _ in STRIKES} == STRIKES.keys() - {"wrong clock"}


def test_stock_celery_has_no_cluster_and_none_of_our_periodic_tasks() -> None:
    ours = {"cluster", "cluster-children", "periodic-killed", "periodic-reset"}
    assert FAULTS.keys() - STOCK_FAULTS.keys() == ours


def test_each_queue_is_published_to_and_some_tasks_are_due_at_full_seconds() -> None:
    with PrivateRedis() as server, server.client() as client:
        url = f"delayq://127.0.0.1:{server.port}/0"
        with publisher(url, server.url) as app, Publisher(app, 200, ["a", "b"], punctual_every=5) as publishing:
            wait_until(lambda: len(publishing.bookings) > 60, "it publishes")
            publishing.stop()
            bookings = publishing.bookings
            assert {it.outcome for it in bookings} == {"sure"}
            delayed = sum(client.zcard(f"redisson_delay_queue_timeout:{{{queue}}}") for queue in "ab")
            assert delayed + client.llen("a") + client.llen("b") == len(bookings)
            assert abs(client.llen("a") - client.llen("b")) < 20
            punctual = [it.due_s for it in bookings if abs(it.due_s - round(it.due_s)) < 0.001]
            assert len(punctual) >= len(bookings) / 5 - 2

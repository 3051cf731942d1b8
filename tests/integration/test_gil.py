"""A task that keeps the GIL for longer than the lease of its worker."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest
import redis
from celery import Celery

from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.state import now_ms
from tests.support import wait_until

pytestmark = [
    pytest.mark.on_cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which processes run"),
]

#: Any file makes a place of its own, as another machine is.
ANOTHER_MACHINE = "/proc/version"

LEASE = {"lease": 2}
GIL_S = 7


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


@pytest.mark.parametrize(
    ("pool", "places"),
    [
        pytest.param("solo", ["here"], id="solo"),
        pytest.param("threads", ["here"], id="threads"),
        pytest.param("solo", [ANOTHER_MACHINE, "here"], id="beside another machine"),
    ],
)
def test_it_runs_once(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, places: list[str]
) -> None:
    """Somebody in the same place sees that its process is at work."""
    options = {"broker": broker_url, "ledger": ledger, "transport": LEASE}
    with ExitStack() as stack:
        stack.enter_context(long_worker(pool=pool, place=places[0], **options))
        task_id = app.send_task("hold_gil", (GIL_S,)).id
        wait_until(lambda: ledger.has([task_id]), "it runs")
        for place in places:
            stack.enter_context(long_worker(place=place, **options))
        open_gate(ledger)
        opened_ms = now_ms(ledger.client)
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
        assert now_ms(ledger.client) - opened_ms > 2 * LEASE["lease"] * 1000
    assert [run.task_id for run in ledger.runs()] == [task_id]

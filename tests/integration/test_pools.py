"""Every pool of Celery runs delayed tasks, and every shutdown ends the loop and leaves no process."""

from __future__ import annotations

import random
import signal
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from celery_delayq.queue.keys import QueueKeys
from tests.ledger import ALL_WELL, Ledger, Verdict
from tests.support import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

POOLS = ["prefork", "threads", "solo", pytest.param("gevent", marks=pytest.mark.thorough)]
KEYS = QueueKeys.of("celery")


def schedule(app: Celery, count: int = 20) -> dict[AsyncResult, float]:
    """Tasks within the next second; their due times in ms."""
    promised = {}
    for _ in range(count):
        eta = datetime.now(timezone.utc) + timedelta(seconds=random.uniform(0.2, 1))
        promised[app.tasks["note"].apply_async(eta=eta)] = eta.timestamp() * 1000
    return promised


def verdict(ledger: Ledger, promised: dict[AsyncResult, float]) -> Verdict:
    """What became of the tasks."""
    return ledger.verdict({result.id: due_ms for result, due_ms in promised.items()})


def punctual(client: redis.Redis) -> str:
    """The id of the punctual loop; empty if there is none."""
    recorded = client.get(KEYS.transferrer)
    return recorded.decode().partition(":")[2] if recorded else ""


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGQUIT], ids=["warm", "cold"])
def test_a_worker_runs_tasks_on_time_and_ends_completely(
    pool: str,
    how: signal.Signals,
    app: Celery,
    broker_url: str,
    ledger: Ledger,
    broker_client: redis.Redis,
) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    with Worker(pool=pool, concurrency=4, broker=broker_url, ledger=ledger.url) as worker:
        promised = schedule(app)
        wait_until(lambda: all(result.ready() for result in promised), "all ran", 20)
        wait_until(lambda: not broker_client.exists("unacked"), "all are acknowledged")
        assert f":{worker.pid}:" in punctual(broker_client)
        pending = app.tasks["note"].apply_async(countdown=3600).id
        worker.send_signal(how)
        status = worker.wait()
        assert worker.session() == set()
        assert "Traceback" not in worker.log
        if how == signal.SIGTERM:
            assert status == 0
    assert verdict(ledger, promised) == ALL_WELL
    assert punctual(broker_client) == "", "the loop has resigned, so it ended in order"
    assert broker_client.pubsub_channels("*delay*") == []
    assert app.delayq.cancel(pending) is True


def test_a_warm_shutdown_finishes_what_is_due_and_leaves_what_is_not(
    app: Celery, broker_url: str, ledger: Ledger
) -> None:
    """Tasks that become due while their only worker stops run in the next one."""
    with Worker(pool="prefork", broker=broker_url, ledger=ledger.url) as worker:
        promised = schedule(app, 100)
        wait_until(lambda: len(ledger.runs()) > 20, "the tasks run")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert len(ledger.runs()) < 100
    with Worker(pool="prefork", broker=broker_url, ledger=ledger.url):
        wait_until(lambda: all(result.ready() for result in promised), "all ran", 20)
    assert verdict(ledger, promised) == ALL_WELL


def test_children_are_replaced_as_often_as_asked(
    app: Celery, broker_url: str, broker_kind: str, ledger: Ledger, broker_client: redis.Redis
) -> None:
    loops = 3 if broker_kind == "cluster" else 1
    with Worker("--max-tasks-per-child=3", pool="prefork", broker=broker_url, ledger=ledger.url) as worker:
        results = [app.tasks["process_id"].apply_async(countdown=0.3 + n / 20) for n in range(20)]
        children = {result.get(timeout=30) for result in results}
        assert len(children) >= 6
        assert worker.pid not in children
        assert f":{worker.pid}:" in punctual(broker_client)
        assert broker_client.pubsub_numsub("delayq:queues")[0][1] == loops
    assert ledger.verdict({result.id: 0.0 for result in results}) == ALL_WELL


#: What Celery's pool imports of eventlet, without greenlets.
_EVENTLET = """
import sys, types

def monkey_patch(): ...

for name in ("debug", "greenthread", "greenpool"):
    module = sys.modules[f"eventlet.{name}"] = types.ModuleType(f"eventlet.{name}")
    module.spawn_n = module.spawn_after = lambda *args: None
    module.GreenPool = lambda limit: types.SimpleNamespace(spawn=None, waitall=dict)
    module.getcurrent = object
    globals()[name] = module
"""


def test_a_worker_with_eventlet_ends_and_names_gevent(broker_url: str, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "eventlet.py").write_text(_EVENTLET)
    worker = Worker(pool="eventlet", broker=broker_url, ledger=ledger.url, paths=[tmp_path])
    worker.start()
    try:
        assert worker.wait() != 0
        assert " ready." not in worker.log
        assert "pool eventlet is not supported: start the worker with -P gevent" in worker.log
    finally:
        worker.__exit__()

"""Java and Celery share a queue on a Redis Cluster while its slot moves, and while its master is replaced."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.keys import QueueKeys
from tests import brokers
from tests.brokers import ClusterServer
from tests.interop.conftest import NOT_LATE_MS
from tests.interop.redisson import CURRENT, NEWEST, Redisson
from tests.ledger import ALL_WELL, Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, slot_of
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

#: Tasks from each side, and when they are due, in ms from now.
COUNT, FIRST_MS, SPREAD_MS = 100, 5000, 3000

MIRRORED: dict[str, Any] = {"broker_transport_options": {"mirror_list": True}}


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster, which is empty at first."""
    yield brokers.emptied(whole_cluster).cluster
    whole_cluster.put_slots_back()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[redis.Redis]:
    """A client of the cluster."""
    with ClusterServer(cluster).client() as client:
        yield client


@pytest.fixture
def app(cluster: Cluster, ledger: Ledger) -> Iterator[Celery]:
    """An app to publish with."""
    with publisher(cluster.url(3), ledger.url, **MIRRORED) as app:
        yield app


@pytest.fixture
def version() -> str:
    """The version of Redisson, the newest unless a test says otherwise."""
    return NEWEST


@pytest.fixture
def redisson(cluster: Cluster, class_path: Callable[[str], str], version: str) -> Iterator[Redisson]:
    """A Redisson with StringCodec."""
    with Redisson(class_path(version), cluster.nodes[0].port, "string", is_cluster=True) as redisson:
        yield redisson


@pytest.fixture
def worker(cluster: Cluster, ledger: Ledger) -> Iterator[Worker]:
    """A worker."""
    with Worker(broker=cluster.url(3), ledger=ledger.url, conf={"task_ignore_result": True, **MIRRORED}) as worker:
        yield worker


def publish(redisson: Redisson, app: Celery, client: redis.Redis) -> dict[str, int]:
    """Publish tasks from both sides, in turns in due order; return task id -> due, unix time in ms."""
    start_ms = now_ms(client) + FIRST_MS
    promised = {}
    for at in range(COUNT):
        due_ms = start_ms + SPREAD_MS * at // COUNT
        of_java, of_python = str(uuid.uuid4()), str(uuid.uuid4())
        redisson.ask("task", "celery", {"task": "late_ack", "id": of_java, "args": [], "eta_ms": due_ms})
        eta = datetime.fromtimestamp(due_ms / 1000, timezone.utc)
        app.tasks["late_ack"].apply_async(eta=eta, task_id=of_python)
        promised.update({of_java: due_ms, of_python: due_ms})
    for _ in range(COUNT):
        redisson.answer()
    assert now_ms(client) < start_ms, "too slow: something was due before all was published"
    return promised


def until_half_ran(ledger: Ledger) -> None:
    wait_until(lambda: len(ledger.runs()) >= COUNT, "half of the tasks ran")
    assert len(ledger.runs()) < 2 * COUNT, "too late: all had run"


def java_transfers(redisson: Redisson, client: redis.Redis) -> None:
    """Java alone transfers what Python offers, woken by its notification."""
    jobs = DelayedQueue(client, "celery")
    due_ms = now_ms(client) + 1500
    jobs.offer(b"sooner than all else", eta=to_datetime(due_ms))
    wait_until(lambda: client.llen("celery") == 1, "Java transferred it", 30)
    assert 0 <= now_ms(client) - due_ms < NOT_LATE_MS


@pytest.mark.parametrize("version", [CURRENT])
def test_every_task_runs_once_while_a_slot_moves(
    cluster: Cluster, redisson: Redisson, app: Celery, client: redis.Redis, worker: Worker, ledger: Ledger
) -> None:
    slot, source = slot_of("celery"), cluster.owner("celery")
    promised = publish(redisson, app, client)
    until_half_ran(ledger)
    cluster.move(slot, next(node for node in cluster.masters() if node is not source), pause_s=0.3)
    wait_until(lambda: ledger.has(promised), "all tasks ran", 60)
    verdict = ledger.verdict(promised)
    assert verdict == ALL_WELL
    assert DelayedQueue(client, "celery").size() == 0
    assert not client.exists(QueueKeys.of("celery").delay_list)
    worker.kill()
    java_transfers(redisson, client)


def test_java_cannot_use_names_that_celery_refuses(redisson: Redisson) -> None:
    for name in ("a}b", "}x", "{}x"):
        with pytest.raises(AssertionError, match="CROSSSLOT"):
            redisson.offer(name, b"value", delay_ms=1000)


class TestAMasterIsReplaced:
    @pytest.fixture
    def cluster(self) -> Iterator[Cluster]:
        """A cluster whose replicas take over 3 to 6 s after their master died."""
        with servers.cluster(replicas=1, settings=("--cluster-node-timeout", "3000")) as cluster:
            yield cluster

    def test_every_task_runs(
        self, cluster: Cluster, redisson: Redisson, app: Celery, client: redis.Redis, worker: Worker, ledger: Ledger
    ) -> None:
        promised = publish(redisson, app, client)
        victim = cluster.owner("celery")
        (replica,) = cluster.replicas_of(victim)
        until_half_ran(ledger)
        victim.kill()
        wait_until(lambda: ledger.has(promised), "all tasks ran", 60)
        verdict = ledger.verdict(promised)
        assert not verdict.lost
        assert not verdict.early
        worker.kill()
        assert cluster.owner("celery") is replica
        with ClusterServer(cluster).client() as fresh:
            java_transfers(redisson, fresh)

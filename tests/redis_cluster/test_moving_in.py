"""What waits on a single server moves to a cluster with an export and an import, and back."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq.inspector.backup import Imported
from examples.private_redis import PrivateRedis
from tests.redis_cluster.servers import Cluster
from tests.worker_app import publisher

LATER = datetime(2040, 1, 1, tzinfo=timezone.utc)

QUEUES = [f"q{number}" for number in range(6)]


def waiting(app: Celery) -> dict[str, tuple[str, int, datetime, str]]:
    """Return what waits: id -> queue, priority, due time, arguments."""
    return {task.id: (task.queue, task.priority, task.due, str(task.args_text)) for task in app.delayq.iter_scheduled()}


@pytest.mark.parametrize("prefix", ["", "shop:", "{shop}:"], ids=["plain", "prefix", "one-slot"])
def test_tasks_move_to_a_cluster_and_back(
    redis_server: PrivateRedis, cluster: Cluster, tmp_path: Path, prefix: str
) -> None:
    conf = {"broker_transport_options": {"global_keyprefix": prefix}} if prefix else {}
    path, ledger = tmp_path / "tasks.jsonl", f"redis://127.0.0.1:{redis_server.port}/9"
    single = f"delayq://127.0.0.1:{redis_server.port}/0"
    with redis_server.client() as client, publisher(single, ledger, **conf) as old:
        client.flushall()
        for number in range(60):
            options = {"queue": QUEUES[number % 6], "priority": number % 10}
            old.tasks["note"].apply_async((number,), eta=LATER, **options)
        before = waiting(old)
        assert old.delayq.export(path) == len(before) == 60

        with publisher(cluster.url(), ledger, **conf) as new:
            assert new.delayq.import_(path) == Imported(60, 0)
            assert waiting(new) == before
            assert new.delayq.import_(path) == Imported(0, 60)
            some = next(iter(before))
            assert new.delayq.cancel(some)
            new.delayq.export(path)

        client.flushall()
        assert old.delayq.import_(path) == Imported(59, 0)
        assert waiting(old) == {id: task for id, task in before.items() if id != some}

"""What happens to one node concerns only its own queues: with real workers, and a real failover."""

from __future__ import annotations

from contextlib import suppress

import pytest
from kombu.exceptions import OperationalError

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

QUEUES = [f"q{number}" for number in range(6)]


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_master_dies_and_its_replica_takes_over(redis_server: PrivateRedis, pool: str) -> None:
    ledger = Ledger(f"redis://127.0.0.1:{redis_server.port}/9")
    ledger.clear()
    with (
        servers.cluster(replicas=1, settings=("--cluster-node-timeout", "3000")) as cluster,
        publisher(cluster.url(3), ledger.url) as app,
        Worker("-Q", ",".join(QUEUES), pool=pool, broker=cluster.url(3), ledger=ledger.url),
    ):
        confirmed: set[str] = set()

        def publish(queues: list[str]) -> None:
            for queue in queues:
                for countdown in (None, 1):
                    task_id = app.tasks["note"].apply_async(queue=queue, countdown=countdown).id
                    confirmed.add(task_id)

        def can_publish() -> bool:
            with suppress(OperationalError):
                publish(QUEUES)
                return True
            return False

        victim = cluster.owner(QUEUES[0])
        others = [queue for queue in QUEUES if cluster.owner(queue) is not victim]
        publish(others)
        victim.kill()
        publish(others)  # the other nodes go on
        wait_until(lambda: {run.task_id for run in ledger.runs()} >= confirmed, "the tasks of the other nodes ran")
        wait_until(can_publish, "the replica takes over")
        wait_until(lambda: {run.task_id for run in ledger.runs()} >= confirmed, "all tasks ran")
        ran = [run.task_id for run in ledger.runs()]
        assert len(ran) == len(set(ran)), "none ran twice"
    ledger.client.close()

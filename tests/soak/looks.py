"""Looks: what is asked of workers, servers and keys: who has ended or computes in vain, and what is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import redis

from examples.private_redis import PrivateRedis
from tests.sentinel import MASTER_NAME
from tests.workers import Worker

#: What stays in a broker for good: the registry of delayed queues, the schedule, and the bindings of kombu, which have
#: another name in a cluster.
_DOCUMENTED = ("delayq:queues", "delayq:schedule", "_kombu.", "{_kombu.")

_CONSUMERS, _DEAD = "delayq:consumers:", "delayq:dead"

#: For so long, a worker without a task is looked at, and so much it may compute meanwhile, in seconds.
_REST_S, _BUSY_S = 2.0, 1.0


def ended(workers: Iterable[Worker]) -> list[str]:
    """Return a complaint for each worker that has ended by itself."""
    return [f"a worker has ended by itself:\n{worker.log[-3000:]}" for worker in workers if worker.has_ended]


def busy(workers: Iterable[Worker]) -> list[str]:
    """Return a complaint for each worker that computes although it has nothing to do."""
    living = [worker for worker in workers if not worker.has_ended]
    before = [_computed_s(worker) for worker in living]
    time.sleep(_REST_S)
    used = [_computed_s(worker) - since_s for worker, since_s in zip(living, before, strict=True)]
    return [
        f"a worker computes for {it / _REST_S:.0%} of the time and has nothing to do" for it in used if it > _BUSY_S
    ]


def _computed_s(worker: Worker) -> float:
    """Return for how long the main process has computed, in seconds."""
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(server: PrivateRedis) -> bool:
    """Return whether a server runs."""
    with suppress(redis.ConnectionError), server.client() as client:
        return bool(client.ping())
    return False


def is_replica(client: redis.Redis) -> bool:
    """Return whether a server is a replica."""
    with suppress(redis.ConnectionError):  # it closes its connections when it becomes one
        return bool(client.role()[0] == b"slave")
    return False


def master_port(sentinel: redis.Redis) -> int:
    """Return the port of the master that Sentinel names."""
    address: Any = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
    return int(address[1])


def leases(client: redis.Redis, key: str) -> Any:
    """Return the consumers that were not given up."""
    return client.zrangebyscore(key, 0, "+inf")


def is_lasting(client: redis.Redis, key: str) -> bool:
    """Return whether a key may be there once everything has stopped."""
    return key.startswith((*_DOCUMENTED, _DEAD)) or (key.startswith(_CONSUMERS) and not leases(client, key))


def is_known(open_sentinel: Callable[[], AbstractContextManager[redis.Redis]], port: int) -> bool:
    """Return whether Sentinel takes a server for a replica that could be promoted."""
    with open_sentinel() as sentinel:
        return any(
            one["port"] == port and one["flags"] == "slave" and one["master-link-status"] == "ok"
            for one in sentinel.sentinel_slaves(MASTER_NAME)
        )


def is_replicated(client: redis.Redis) -> bool:
    """Return whether the replica has everything. Nothing more is written for ten seconds."""
    client.client_pause(10_000, all=False)
    found = client.info("replication")
    return "slave0" in found and bool(found["slave0"]["offset"] >= found["master_repl_offset"])

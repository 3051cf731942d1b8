"""A Redis master and its replica, which can stop to follow and take over; and a cluster of such pairs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from examples.private_cluster import follows
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer
from tests.redis_cluster.servers import Cluster, cluster
from tests.support import wait_until

#: Otherwise a replica waits for 5 s before it follows.
_PROMPT = ("--repl-diskless-sync-delay", "0")


class Pair:
    """A master and its replica, which can stop to follow."""

    def __init__(self, master: PrivateRedis, replica: PrivateRedis) -> None:
        self.master = master
        self.replica = replica

    @property
    def url(self) -> str:
        return self.master.url.replace("redis://", "delayq://")

    @property
    def urls(self) -> str:
        """Both servers, for a worker that goes on to the next one."""
        return f"{self.url};delayq://127.0.0.1:{self.replica.port}/0"

    def client(self) -> redis.Redis:
        """Return a new client of the master; the caller closes it."""
        return self.master.client()

    def written(self) -> int:
        """Return how much was written so far, in bytes."""
        with self.master.client() as client:
            return int(client.info("replication")["master_repl_offset"])

    def wait_until_replicated(self) -> None:
        """Wait until the replica has all that was written so far."""
        with self.master.client() as client:
            client.publish("written", "")
            assert client.wait(1, 20_000) == 1

    def suspend(self) -> None:
        """Suspend the replica and cut its link: otherwise it would read what is in the socket when it goes on."""
        os.kill(self.replica.pid, signal.SIGSTOP)
        with self.master.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def resume(self) -> None:
        """Let the replica go on."""
        os.kill(self.replica.pid, signal.SIGCONT)

    def wait_until_it_follows(self) -> None:
        with self.replica.client() as client:
            wait_until(lambda: client.role()[3] == b"connected", "the replica follows", 20)

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Suspend the replica while the block lasts."""
        self.suspend()
        try:
            yield
        finally:
            self.resume()

    def fail_over(self) -> None:
        """Kill the master without warning, and promote the replica."""
        self.master.kill()
        self.resume()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")


class Pairs:
    """A cluster whose masters have a replica each. The methods are those of `Pair`; all replicas stop to follow."""

    def __init__(self, whole: Cluster) -> None:
        self._cluster = whole
        self._masters = whole.masters()
        self._replicas = [replica for master in self._masters for replica in whole.replicas_of(master)]

    @property
    def url(self) -> str:
        return self._cluster.url(3)

    def client(self) -> redis.Redis:
        """Return a new client of the masters; the caller closes it."""
        return ClusterServer(self._cluster).client()

    def written(self) -> int:
        """Return how much was written so far, in bytes."""
        return sum(int(node.client.info("replication")["master_repl_offset"]) for node in self._masters)

    def resume(self) -> None:
        """Let the replicas go on."""
        for replica in self._replicas:
            replica.resume()

    def wait_until_it_follows(self) -> None:
        for replica in self._replicas:
            wait_until(lambda: follows(replica), f"{replica} follows", 20)  # noqa: B023

    @contextmanager
    def lagging(self) -> Iterator[None]:
        """Suspend the replicas while the block lasts."""
        try:
            for replica in self._replicas:
                replica.suspend()
            for master in self._masters:  # as with `Pair.suspend`
                master.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            yield
        finally:
            self.resume()


@contextmanager
def replicated_nodes() -> Iterator[Pairs]:
    """A cluster of three masters and three replicas. None takes over."""
    with cluster(replicas=1, settings=("--cluster-node-timeout", "15000")) as whole:
        yield Pairs(whole)


@contextmanager
def replicated() -> Iterator[Pair]:
    """A master and a replica that follows it."""
    with (
        PrivateRedis(*_PROMPT) as master,
        PrivateRedis(*_PROMPT, "--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        pair = Pair(master, replica)
        pair.wait_until_it_follows()
        yield pair

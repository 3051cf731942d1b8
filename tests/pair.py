"""A Redis master and its replica, which can stop to follow and take over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from examples.private_redis import PrivateRedis
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

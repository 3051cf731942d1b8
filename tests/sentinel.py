"""A master, its replica, and a Redis Sentinel that watches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from examples.private_redis import PrivateRedis, find_server
from tests.support import wait_until

MASTER_NAME = "shop"

#: Otherwise a replica waits for 5 s before it follows.
_PROMPT = ("--repl-diskless-sync-delay", "0")


@dataclass(frozen=True)
class Replicated:
    """The three servers, all running at first."""

    master: PrivateRedis
    replica: PrivateRedis
    sentinel: PrivateRedis

    @property
    def url(self) -> str:
        """The broker URL, for our transport."""
        return f"delayq+sentinel://127.0.0.1:{self.sentinel.port}/0"

    @property
    def conf(self) -> dict[str, Any]:
        """What else an app has to say."""
        return {"broker_transport_options": {"master_name": MASTER_NAME}}

    def fail_over(self) -> None:
        """Kill the master; return when Sentinel has made the replica the master."""
        with self.master.client() as client:
            assert client.wait(1, 5000) == 1
        self.master.kill()
        with self.replica.client() as client:
            wait_until(lambda: _is_master(client), "the replica is the master", 30)


def _is_master(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):  # the server closes its connections when it becomes one
        return bool(client.role()[0] == b"master")
    return False


@contextmanager
def replicated(folder: Path) -> Iterator[Replicated]:
    """Run the three servers; the files of Sentinel are in `folder`."""
    with (
        PrivateRedis(*_PROMPT) as master,
        PrivateRedis(*_PROMPT, "--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        with replica.client() as client:
            wait_until(lambda: client.role()[3] == b"connected", "the replica follows", 20)
        with PrivateRedis(server=_sentinel(folder, master.port)) as sentinel:
            with sentinel.client() as client:
                wait_until(lambda: client.sentinel_slaves(MASTER_NAME), "Sentinel knows the replica", 20)
            yield Replicated(master, replica, sentinel)


def _sentinel(folder: Path, master_port: int) -> Path:
    """Return a command that is redis-server as Sentinel: it wants a file that it may write to."""
    config = folder / "sentinel.conf"
    config.write_text(
        f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master_port} 1\n"
        f"sentinel down-after-milliseconds {MASTER_NAME} 500\n"
        f"sentinel failover-timeout {MASTER_NAME} 2000\n"
    )
    command = folder / "sentinel"
    command.write_text(f'#!/bin/sh\nexec "{find_server()}" "{config}" --sentinel "$@"\n')
    command.chmod(0o755)
    return command

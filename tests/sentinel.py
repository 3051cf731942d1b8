"""A master, its replica, and Redis Sentinels that watch them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from examples.private_redis import PrivateRedis, find_server
from tests.support import wait_until

MASTER_NAME = "shop"

#: A master that has not answered for so long is dead, for Sentinel.
DOWN_AFTER_MS = 500

#: Otherwise a replica waits for 5 s before it follows.
_PROMPT = ("--repl-diskless-sync-delay", "0")


@dataclass(frozen=True)
class Replicated:
    """The servers, all running at first."""

    master: PrivateRedis
    replica: PrivateRedis
    sentinels: tuple[PrivateRedis, ...]

    @property
    def sentinel(self) -> PrivateRedis:
        """The first sentinel."""
        return self.sentinels[0]

    @property
    def url(self) -> str:
        """The broker URL, for our transport."""
        return ";".join(f"delayq+sentinel://127.0.0.1:{one.port}/0" for one in self.sentinels)

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

    def fail_over_as_planned(self) -> None:
        """Let Sentinel make the replica the master; return when it says so. The old master goes on for some seconds."""
        with self.sentinel.client() as sentinel:
            sentinel.execute_command("SENTINEL FAILOVER", MASTER_NAME)
            wait_until(
                lambda: int(sentinel.sentinel_get_master_addr_by_name(MASTER_NAME)[1]) == self.replica.port,
                "Sentinel names the replica",
                60,
            )


def set_down_after(sentinel: redis.Redis, milliseconds: int) -> None:
    """Set how long a master may not answer until Sentinel takes it for dead."""
    sentinel.sentinel_set(MASTER_NAME, "down-after-milliseconds", milliseconds)


def _is_master(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):  # the server closes its connections when it becomes one
        return bool(client.role()[0] == b"master")
    return False


@contextmanager
def replicated(folder: Path, sentinels: int = 1) -> Iterator[Replicated]:
    """Run the servers, with one or three sentinels, whose files are in `folder`."""
    with ExitStack() as stack:
        master = stack.enter_context(PrivateRedis(*_PROMPT))
        replica = stack.enter_context(PrivateRedis(*_PROMPT, "--replicaof", "127.0.0.1", str(master.port)))
        with replica.client() as client:
            wait_until(lambda: client.role()[3] == b"connected", "the replica follows", 20)
        quorum = sentinels // 2 + 1
        running = tuple(
            stack.enter_context(PrivateRedis(server=sentinel_command(folder / str(number), master.port, quorum)))
            for number in range(sentinels)
        )
        for one in running:
            with one.client() as client:
                wait_until(lambda: client.sentinel_slaves(MASTER_NAME), "it knows the replica", 20)
                others = sentinels - 1
                wait_until(lambda: len(client.sentinel_sentinels(MASTER_NAME)) == others, "and the others", 20)  # noqa: B023
        yield Replicated(master, replica, running)


def sentinel_command(folder: Path, master_port: int, quorum: int, server: Path | None = None) -> Path:
    """Return a command that is redis-server as Sentinel: it wants a file that it may write to."""
    folder.mkdir()
    config = folder / "sentinel.conf"
    config.write_text(
        f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master_port} {quorum}\n"
        f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {MASTER_NAME} 2000\n"
    )
    command = folder / "sentinel"
    command.write_text(f'#!/bin/sh\nexec "{server or find_server()}" "{config}" --sentinel "$@"\n')
    command.chmod(0o755)
    return command

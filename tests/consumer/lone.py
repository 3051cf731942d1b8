"""Consumers in other processes, which can be killed; and what is known of consumers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery_delayq.fetching.consumer import Consumer
from tests.consumer.conftest import Consumers
from tests.support import wait_until

REPOSITORY = Path(__file__).parents[2]

#: So long that no test lasts until it ends: what is recovered meanwhile was seen to be gone.
LONG_S = 300.0


class Lone:
    """A consumer in another process, see `lone_consumer`."""

    def __init__(self, port: int, lease_s: float, count: int, place: str) -> None:
        arguments = [str(port), str(lease_s), str(count), place]
        command = [sys.executable, "-m", "tests.consumer.lone_consumer", *arguments]
        self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self.id = self.output.readline().strip()
        assert self.id

    def kill(self) -> None:
        """End it without a chance to do anything."""
        self.process.kill()
        self.process.wait()


@contextmanager
def lone(
    consumers: Consumers, *messages: bytes, lease_s: float = LONG_S, place: str = "here", port: int | None = None
) -> Iterator[Lone]:
    """Publish messages, and give them to a consumer in another process, which others can see.

    Args:
        consumers: the others.
        messages: all that it holds.
        lease_s: its lease.
        place: "elsewhere" if nobody may ask for its process.
        port: to which it connects.
    """
    consumers.publish(*messages)
    process = Lone(port or consumers.server.port, lease_s, len(messages), place)
    try:
        consumers.wait_until_seen(process.id)
        assert consumers.waiting() == []
        yield process
    finally:
        process.kill()
        process.output.close()


def known(consumers: Consumers) -> list[str]:
    """Return the ids of all consumers that have a lease or were given up."""
    return [name.decode() for name in consumers.client.zrange("delayq:consumers:{q}", 0, -1)]


def wait_for_end_of_lease(consumers: Consumers, *leases: Consumer) -> None:
    ends = [consumers.score(consumer) for consumer in leases]
    wait_until(lambda: time.time() * 1000 > max(ends), "their leases have ended", 20)

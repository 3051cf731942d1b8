"""Redisson in each version, beside the workers and the ledger of the integration tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import pytest
import redis

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.brokers import Server
from tests.integration.conftest import ledger, ledger_url
from tests.interop.redisson import CURRENT, NEWEST, OLD, JavaMissing, Redisson, build
from tests.ledger import Ledger
from tests.workers import CeleryCommand

__all__ = ["ledger", "ledger_url"]

#: What comes later than this, in ms, was not woken by a notification: both sides look again after 5 s only.
NOT_LATE_MS = 3000

#: On a cluster, Redisson 3.27 sends an SPUBLISH for slot 0 to any node, to see whether it can, and strays are counted.
CURRENT_ELSEWHERE = pytest.param(CURRENT, marks=pytest.mark.one_server("see test_cluster.py"))

#: Starts a Redisson of a version, the newest by default; it ends with the test.
StartRedisson = Callable[..., Redisson]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here more time: the first one of a version waits for Maven."""
    for path, found in groupby(items, key=lambda item: item.path):
        if path.is_relative_to(Path(__file__).parent):
            for item in found:
                item.add_marker(pytest.mark.timeout(600))


def without_java(reason: str) -> NoReturn:
    """Skip the test for want of Java, or fail where the environment promises that it is here, as `.ci/run` does."""
    if os.environ.get("DELAYQ_REQUIRE_JAVA"):
        pytest.fail(reason)
    pytest.skip(f"no test with Redisson: {reason}")


def connected(class_path: str, broker: Server, codec: str = "bytes") -> Redisson:
    """Return a Redisson for a broker."""
    if isinstance(broker, PrivateRedis):
        return Redisson(class_path, broker.port, codec)
    return Redisson(class_path, broker.cluster.nodes[0].port, codec, is_cluster=True)


@pytest.fixture(scope="session")
def class_path() -> Callable[[str], str]:
    """Build the test program with a version of Redisson; return its class path."""

    def get(version: str) -> str:
        try:
            return build(version)
        except JavaMissing as error:
            without_java(str(error))

    return get


@pytest.fixture(scope="module")
def broker(broker_kind: str, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The Redis, or the cluster, that Java and Python share in this module."""
    if broker_kind == "cluster":
        yield brokers.emptied(request.getfixturevalue("whole_cluster"))
        return
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def broker_client(broker: Server) -> Iterator[redis.Redis]:
    """A client of it; it is empty at first."""
    with broker.client() as client:
        client.flushall()
        yield client


@pytest.fixture(scope="module")
def broker_url(broker: Server) -> str:
    """Its URL, for our transport."""
    return brokers.url_of(broker)


@pytest.fixture
def start_redisson(
    class_path: Callable[[str], str], broker: Server, broker_client: redis.Redis
) -> Iterator[StartRedisson]:
    """Start a Redisson; `start_redisson(version, codec="bytes")`."""
    with ExitStack() as stack:

        def start(version: str = NEWEST, codec: str = "bytes") -> Redisson:
            return stack.enter_context(connected(class_path(version), broker, codec))

        yield start


@pytest.fixture(params=[NEWEST, CURRENT_ELSEWHERE, OLD])
def redisson(request: pytest.FixtureRequest, start_redisson: StartRedisson) -> Redisson:
    """A Redisson of each version in turn, with ByteArrayCodec."""
    return start_redisson(request.param)


@pytest.fixture(scope="module")
def lasting_redisson(class_path: Callable[[str], str], broker: Server) -> Iterator[Redisson]:
    """A Redisson for the tests of a module, since a JVM takes a while to start."""
    with connected(class_path(NEWEST), broker) as redisson:
        yield redisson


@pytest.fixture
def newest(lasting_redisson: Redisson, broker_client: redis.Redis) -> Iterator[Redisson]:
    """A Redisson of the newest version, with ByteArrayCodec, that transfers nothing yet. Not to be killed."""
    lasting_redisson.call("destroy_all", "")
    yield lasting_redisson
    lasting_redisson.call("destroy_all", "")  # or it would transfer in tests that do without it


@pytest.fixture
def jobs(broker_client: redis.Redis) -> DelayedQueue:
    """The delayed queue in front of the list `jobs`."""
    return DelayedQueue(broker_client, "jobs")


class TransferCommand(CeleryCommand):
    """A `celery delayq transfer` that knows the queue from its registry."""

    def __enter__(self) -> TransferCommand:
        super().__enter__()
        return self

    def wait_until_ready(self) -> None:
        self.wait_for_log("connected.")


@pytest.fixture
def transfer_command(broker_url: str, ledger: Ledger) -> Iterator[TransferCommand]:
    """The package's loop in a process of its own."""
    with TransferCommand("delayq", "transfer", broker=broker_url, ledger=ledger.url) as command:
        yield command

"""Redis for the tests: always a private one, on which everything may be deleted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

from examples.private_redis import PrivateRedis, ServerNotFound
from tests.support import servers, without_server

# A shell without job control starts what runs in its background with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on the speed of the machine.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


#: What `make test` leaves out: these tests take long. They break things and compare with others; the rest checks
#: every feature. `make test-all` runs them, too.
_THOROUGH = (
    *("benchmarks", "interop", "soak", "consumer/test_flaps.py", "planner/test_interleavings.py"),
    *(f"faults/test_{name}.py" for name in ("demoted_master", "nights", "nothing_lost", "planners", "poison")),
    "faults/test_server_faults.py",
    "redis_cluster/test_failover.py",
    "integration/template",
    *(f"integration/test_{name}.py" for name in ("example_orders", "lost_connection", "prefetch", "release")),
    *(f"integration/test_{name}.py" for name in ("side_by_side", "stock_eta_tasks")),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough."""
    folder = Path(__file__).parent
    thorough = {folder / name for name in _THOROUGH}
    for item in items:
        if not thorough.isdisjoint((item.path, *item.path.parents)):
            item.add_marker("thorough")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Choose how many processes `--numprocesses=auto` means: most tests wait for workers most of the time."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    """The Redis of this process's tests: each process of pytest-xdist has its own."""
    try:
        server = PrivateRedis()
    except ServerNotFound as error:
        without_server(str(error))
    with server:
        yield server


@pytest.fixture
def client(redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    """A client of the session's Redis, which is empty at first."""
    with redis_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def durable_server() -> Iterator[PrivateRedis]:
    """A server that forgets nothing when it is killed."""
    with PrivateRedis("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture(scope="session", params=servers() or [None])
def any_redis_server(request: pytest.FixtureRequest) -> Iterator[PrivateRedis]:
    """Each kind of Redis on this machine in turn, for what may depend on the version."""
    if request.param is None:
        without_server("no Redis server on this machine")
    with PrivateRedis(server=servers()[request.param]) as server:
        yield server

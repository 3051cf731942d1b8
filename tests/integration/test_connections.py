"""Whatever connections kombu's Redis transport has: over each, tasks are published, transferred and run on time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel as StockChannel

from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.integration.certificates import Certificates, reserved_port
from tests.integration.test_results import keeps_a_result, results
from tests.ledger import ALL_WELL, Ledger
from tests.refusing import refusing
from tests.sentinel import MASTER_NAME, replicated
from tests.support import wait_until
from tests.worker_app import PASSWORD, USER, publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("kinds of connections to one server; redis_cluster has those of a cluster")


def runs_delayed_tasks(
    broker: str,
    ledger: Ledger,
    client: redis.Redis,
    *,
    queue: str = "celery",
    conf: Mapping[str, Any] | None = None,
) -> None:
    """Publish over `broker` and have a worker run it, its loop over a connection of its own.

    Args:
        broker: the broker URL.
        ledger: where the tasks write that they ran.
        client: another way to the same database.
        queue: the name of the broker list.
        conf: further configuration of publisher and worker.
    """
    conf = dict(conf or {})
    with (
        publisher(broker, ledger.url, **conf) as app,
        Worker(broker=broker, ledger=ledger.url, conf=conf) as worker,
    ):
        cancelled = app.tasks["note"].apply_async(countdown=3600)
        assert DelayedQueue(client, queue).size() == 1
        assert app.delayq.cancel(cancelled.id) is True
        due = time.time() + 0.5
        promised = {app.tasks["note"].apply_async(countdown=0.5).id: due * 1000 for _ in range(5)}
        wait_until(lambda: ledger.has(promised), "all ran", 20)
        assert ledger.verdict(promised) == ALL_WELL
        assert f":{worker.pid}:" in punctual(client, queue), "it is the worker's loop"
        assert "interrupted" not in worker.log


def punctual(client: redis.Redis, queue: str = "celery") -> str:
    """The id of the loop that transferred last."""
    recorded = client.get(DelayedQueue(client, queue).keys.transferrer)
    assert isinstance(recorded, bytes)
    return recorded.decode()


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def admin(server: PrivateRedis) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize("db", [0, 3])
def test_a_unix_socket(server: PrivateRedis, ledger: Ledger, db: int) -> None:
    url = f"delayq+socket://{server.socket_path}?virtual_host={db}"
    with server.client(db=db) as client:
        runs_delayed_tasks(url, ledger, client)


def test_what_is_refused_for_now_over_a_unix_socket_is_said_as_redis_says_it(
    server: PrivateRedis, admin: redis.Redis, ledger: Ledger
) -> None:
    with (
        publisher(f"delayq+socket://{server.socket_path}", ledger.url) as app,
        app.connection_for_write() as connection,
        refusing(admin, "NOREPLICAS"),
        pytest.raises(redis.ConnectionError, match=r"^NOREPLICAS "),
    ):
        connection.connect()


@pytest.mark.parametrize("keyprefix", ["shop:", "{shop}"])
def test_a_global_key_prefix(server: PrivateRedis, admin: redis.Redis, ledger: Ledger, keyprefix: str) -> None:
    conf = {"broker_transport_options": {"global_keyprefix": keyprefix}}
    url = f"delayq://127.0.0.1:{server.port}/0"
    queue = f"{keyprefix}celery"
    runs_delayed_tasks(url, ledger, admin, queue=queue, conf=conf)
    names = {key.decode() for key in admin.scan_iter()}
    assert {name for name in names if keyprefix not in name} == set()


@pytest.fixture
def user(admin: redis.Redis) -> str:
    """An ACL user who may do what no administrator is needed for; nobody else may do anything."""
    rules = {"keys": ["*"], "channels": ["*"], "categories": ["+@all", "-@dangerous"]}
    admin.acl_setuser(USER, enabled=True, passwords=[f"+{PASSWORD}"], **rules)
    admin.acl_setuser("default", enabled=True, reset_passwords=True, passwords=["+admin"])
    return f"{USER}:{quote(PASSWORD, safe='')}"


def test_an_acl_user(server: PrivateRedis, admin: redis.Redis, ledger: Ledger, user: str) -> None:
    runs_delayed_tasks(f"delayq://{user}@127.0.0.1:{server.port}/0", ledger, admin)


def test_an_acl_user_over_a_unix_socket(server: PrivateRedis, admin: redis.Redis, ledger: Ledger, user: str) -> None:
    runs_delayed_tasks(f"delayq+socket://{user}@{server.socket_path}", ledger, admin)


def test_a_password_only(server: PrivateRedis, ledger: Ledger) -> None:
    with server.client() as client:
        client.config_set("requirepass", "a b/c")
    with server.client(password="a b/c") as client:
        url = f"delayq://:{quote('a b/c', safe='')}@127.0.0.1:{server.port}/0"
        runs_delayed_tasks(url, ledger, client)


@pytest.mark.skipif(
    not hasattr(StockChannel, "_process_credential_provider"), reason="kombu 5.6.0 has no credential providers"
)
def test_a_credential_provider(server: PrivateRedis, admin: redis.Redis, ledger: Ledger, user: str) -> None:
    provider = "credential_provider=tests.worker_app.Credentials"
    runs_delayed_tasks(f"delayq://127.0.0.1:{server.port}/0?{provider}", ledger, admin)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Iterator[tuple[PrivateRedis, int]]:
    with (
        reserved_port() as port,
        PrivateRedis(*certificates.redis_options(port), server=certificates.server()) as server,
    ):
        yield server, port


class TestTLS:
    def test_certificates_of_a_known_authority(
        self, tls: tuple[PrivateRedis, int], certificates: Certificates, ledger: Ledger
    ) -> None:
        server, port = tls
        conf = {"broker_use_ssl": {"ssl_ca_certs": str(certificates.authority)}}
        with server.client() as client:
            runs_delayed_tasks(f"delayqs://127.0.0.1:{port}/0", ledger, client, conf=conf)

    def test_an_authority_in_the_url(
        self, tls: tuple[PrivateRedis, int], certificates: Certificates, ledger: Ledger
    ) -> None:
        server, port = tls
        options = f"ssl_cert_reqs=required&ssl_ca_certs={quote(str(certificates.authority), safe='')}"
        with server.client() as client:
            runs_delayed_tasks(f"delayqs://127.0.0.1:{port}/0?{options}", ledger, client)

    def test_results(self, tls: tuple[PrivateRedis, int], certificates: Certificates) -> None:
        _server, port = tls
        url = f"delayqs://127.0.0.1:{port}/7"
        with results(f"{url}?ssl_ca_certs={quote(str(certificates.authority), safe='')}") as backend:
            keeps_a_result(backend)
        with results(url) as backend, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            backend.client.ping()

    def test_certificates_of_an_unknown_authority_are_refused_by_default(self, tls: tuple[PrivateRedis, int]) -> None:
        _server, port = tls
        with (
            Connection(f"delayqs://127.0.0.1:{port}/0") as connection,
            pytest.raises(OperationalError, match="certificate verify failed"),
        ):
            connection.ensure_connection(max_retries=1)

    def test_verification_can_be_turned_off(self, tls: tuple[PrivateRedis, int], ledger: Ledger) -> None:
        server, port = tls
        with server.client() as client:
            url = f"delayqs://127.0.0.1:{port}/0"
            conf = {"broker_use_ssl": {"ssl_cert_reqs": "none", "ssl_check_hostname": False}}
            runs_delayed_tasks(url, ledger, client, conf=conf)


class TestFailover:
    """Several URLs: the first that answers is used, and another one when it no longer does."""

    def test_the_first_is_down_from_the_start(self, server: PrivateRedis, admin: redis.Redis, ledger: Ledger) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            dead = f"delayq://127.0.0.1:{nobody.getsockname()[1]}/0"
            alive = f"delayq://127.0.0.1:{server.port}/0"
            runs_delayed_tasks(f"{dead};{alive}", ledger, admin)

    def test_the_first_goes_down_while_a_worker_runs(
        self, server: PrivateRedis, admin: redis.Redis, ledger: Ledger
    ) -> None:
        with PrivateRedis() as first, first.client() as first_client:
            second_url = f"delayq://127.0.0.1:{server.port}/0"
            url = f"delayq://127.0.0.1:{first.port}/0;{second_url}"
            with (
                Worker(broker=url, ledger=ledger.url) as worker,
                publisher(url, ledger.url) as app,
                publisher(second_url, ledger.url) as second_app,
            ):
                before = app.tasks["note"].apply_async(countdown=0.3)
                before.get(timeout=20)
                assert DelayedQueue(first_client, "celery").size() == 0
                # A lost acknowledgement ends a worker of kombu's Redis transport.
                wait_until(lambda: not first_client.exists("unacked"), "it is acknowledged")
                first.kill()
                worker.wait_for_log(f"127.0.0.1:{server.port}/0")
                due = time.time() + 2  # later than a first connection takes: what is due already is not transferred
                after = second_app.tasks["note"].apply_async(countdown=2)
                wait_until(lambda: ledger.has([after.id]), "it ran on the second server", 20)
                assert ledger.verdict({before.id: 0, after.id: due * 1000}) == ALL_WELL
                assert f":{worker.pid}:" in punctual(admin)


class TestSentinel:
    @pytest.mark.thorough
    def test_the_master_is_found_and_so_is_its_successor(self, tmp_path: Path, ledger: Ledger) -> None:
        with (
            replicated(tmp_path) as servers,
            Worker(broker=servers.url, ledger=ledger.url, conf=servers.conf) as worker,
            publisher(servers.url, ledger.url, **servers.conf) as app,
            servers.master.client() as master,
            servers.replica.client() as replica,
        ):
            due = time.time() + 2  # as above
            before = app.tasks["note"].apply_async(countdown=2)
            wait_until(lambda: ledger.has([before.id]), "it ran", 20)
            assert f":{worker.pid}:" in punctual(master)
            # A lost acknowledgement ends a worker of kombu's Redis transport.
            wait_until(lambda: not master.exists("unacked"), "it is acknowledged")

            with results(servers.url, result_backend_transport_options={"master_name": MASTER_NAME}) as backend:
                keeps_a_result(backend)

            survivor_due = time.time() + 5
            survivor = app.tasks["note"].apply_async(countdown=5)
            servers.fail_over()
            wait_until(lambda: ledger.has([survivor.id]), "what waited ran on the replica", 30)

            with publisher(servers.url, ledger.url, **servers.conf) as new_app:
                after_due = time.time() + 0.5
                after = new_app.tasks["note"].apply_async(countdown=0.5)
                wait_until(lambda: ledger.has([after.id]), "new ones run", 20)
            assert f":{worker.pid}:" in punctual(replica)
            promised = {before.id: due, survivor.id: survivor_due, after.id: after_due}
            assert ledger.verdict({k: v * 1000 for k, v in promised.items()}) == ALL_WELL

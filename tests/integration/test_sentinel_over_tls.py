"""`delayqs+sentinel://`: sentinels, master and replica that speak TLS, and a failover among them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.sentinel import MasterNotFoundError

from celery_delayq import register
from examples.private_redis import PrivateRedis
from tests.integration.certificates import Certificates, reserved_port
from tests.integration.test_results import NAMED, keeps_a_result, results
from tests.ledger import Ledger
from tests.sentinel import MASTER_NAME, sentinel_command
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("Sentinel watches single servers")


@dataclass(frozen=True)
class Servers:
    """The master, and the ports on which the sentinels and the master speak TLS."""

    master: PrivateRedis
    master_port: int
    ports: tuple[int, int]
    authority: Path

    @property
    def conf(self) -> dict[str, Any]:
        """What an app has to say."""
        tls = {"ssl_ca_certs": str(self.authority), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return {"broker_transport_options": {"master_name": MASTER_NAME}, "broker_use_ssl": tls}

    def url(self, query: str = "") -> str:
        """The URL of both sentinels."""
        return ";".join(f"delayqs+sentinel://127.0.0.1:{port}/0{query}" for port in self.ports)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    register()
    certificates = Certificates(tmp_path)
    server = certificates.server()

    def tls(port: int) -> tuple[str, ...]:
        return (*certificates.redis_options(port), "--tls-replication", "yes")

    with ExitStack() as stack:
        master_port, replica_port, *of_sentinels = [stack.enter_context(reserved_port()) for _ in range(4)]
        master = stack.enter_context(PrivateRedis(*tls(master_port), server=server))
        following = ("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(master_port))
        replica = stack.enter_context(PrivateRedis(*tls(replica_port), *following, server=server))
        with replica.client() as client:
            wait_until(lambda: client.role()[3] == b"connected", "the replica follows", 20)
        for port in of_sentinels:
            command = sentinel_command(tmp_path / str(port), master_port, 1, server)
            with stack.enter_context(PrivateRedis(*tls(port), server=command)).client() as client:
                wait_until(lambda: client.sentinel_slaves(MASTER_NAME), "it knows the replica", 20)
        yield Servers(master, master_port, (of_sentinels[0], of_sentinels[1]), certificates.authority)


def address(connection: Connection) -> tuple[str, int]:
    """The server that a kombu connection has found."""
    name, port = connection.default_channel.client.connection_pool.get_master_address()
    return str(name), int(port)


def test_a_worker_goes_on_with_the_replica(servers: Servers, ledger: Ledger) -> None:
    with (
        publisher(servers.url(), ledger.url, **servers.conf) as app,
        Worker(broker=servers.url(), ledger=ledger.url, conf=servers.conf) as worker,
    ):
        worker.wait_for_log("Listening to Redis Sentinel: connected")
        first = app.tasks["note"].apply_async(countdown=0.3)
        wait_until(lambda: ledger.has([first.id]), "it runs", 20)
        servers.master.kill()
        wait_until(lambda: publishes(app, ledger), "it runs what the replica was given", 60)
        assert "CERTIFICATE" not in worker.log
        with app.connection_for_write() as connection:
            wait_until(lambda: finds_another(connection, servers), "Sentinel names the replica", 20)


def finds_another(connection: Connection, servers: Servers) -> bool:
    """Whether it finds another master; just after the failover, Sentinel may take that one for down, too."""
    with suppress(MasterNotFoundError):
        return address(connection)[1] != servers.master_port
    return False


def publishes(app: Any, ledger: Ledger) -> bool:
    """Whether a delayed task could be sent; then it runs."""
    try:
        sent = app.tasks["note"].apply_async(countdown=0.3, retry=False)
    except OperationalError:
        return False
    wait_until(lambda: ledger.has([sent.id]), "it runs", 30)
    return True


def test_the_url_may_name_the_authority(servers: Servers) -> None:
    query = f"?ssl_ca_certs={quote(str(servers.authority), safe='')}"
    options = {"master_name": MASTER_NAME}
    with Connection(servers.url(query), transport_options=options) as connection:
        assert address(connection) == ("127.0.0.1", servers.master_port)
        assert connection.default_channel.client.ping()
        connection.maybe_switch_next()
        assert connection.default_channel.client.ping()
    with results(servers.url(query), **NAMED) as backend:
        keeps_a_result(backend)


@pytest.mark.parametrize(
    ("known_to_sentinels", "match"), [(True, "certificate verify failed"), (False, "No master found for 'shop'")]
)
def test_a_certificate_of_an_unknown_authority_is_refused(
    servers: Servers, known_to_sentinels: bool, match: str
) -> None:
    """redis-py does not say why it cannot ask a sentinel."""
    tls = {"ssl_ca_certs": str(servers.authority)} if known_to_sentinels else {}
    options = {"master_name": MASTER_NAME, "sentinel_kwargs": tls}
    with (
        Connection(servers.url(), transport_options=options) as connection,
        pytest.raises(OperationalError, match=match),
    ):
        connection.ensure_connection(max_retries=1)
    with (
        results(servers.url(), result_backend_transport_options=options) as backend,
        pytest.raises(redis.ConnectionError, match=match),
    ):
        backend.client.ping()


def test_only_the_servers_may_speak_tls(servers: Servers) -> None:
    """As with kombu's `sentinel://`: `broker_use_ssl` is for Redis, `sentinel_kwargs` for the sentinels."""
    tls = {"ssl_ca_certs": str(servers.authority)}
    options = {"master_name": MASTER_NAME, "sentinel_kwargs": {"ssl": True, **tls}}
    url = servers.url().replace("delayqs", "delayq")
    with Connection(url, ssl=tls, transport_options=options) as connection:
        assert connection.default_channel.client.ping()

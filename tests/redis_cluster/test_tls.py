"""A cluster that speaks nothing but TLS, as broker and as result backend."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import chord
from kombu.exceptions import OperationalError

from examples.private_redis import PrivateRedis
from tests.integration.certificates import Certificates
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until
from tests.worker_app import PASSWORD, USER, publisher
from tests.workers import Worker

#: On all nodes.
QUEUES = [f"q{number}" for number in range(6)]

_ADMIN = "s3cret of the/administrator"


class TLSServer(PrivateRedis):
    """A server that speaks TLS only, also with other nodes, and asks for a password."""

    def __init__(self, *options: str, certificates: Certificates, port: int, **kwargs: Any) -> None:
        only_tls = ("--port", "0", "--tls-cluster", "yes", "--tls-replication", "yes")
        passwords = ("--requirepass", _ADMIN, "--masterauth", _ADMIN)
        super().__init__(*options, *certificates.redis_options(port), *only_tls, *passwords, port=port, **kwargs)
        self._authority = str(certificates.authority)

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client, see `PrivateRedis`."""
        return super().client(password=_ADMIN, ssl=True, ssl_ca_certs=self._authority, **options)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_cluster(certificates: Certificates) -> Iterator[Cluster]:
    """Three masters, and a user who may do all that no administrator is needed for."""
    make = partial(TLSServer, certificates=certificates)
    with servers.cluster(
        server=certificates.server(), make=make, settings=("--cluster-node-timeout", "15000")
    ) as cluster:
        rules = ("on", f">{PASSWORD}", "~*", "&*", "+@all", "-@dangerous", "+cluster|slots")
        for node in cluster.nodes:
            node.client.execute_command("ACL", "SETUSER", USER, *rules)
        yield cluster


def url_of(cluster: Cluster, login: str, query: str = "") -> str:
    """Return the URL of two of the nodes."""
    return ";".join(f"delayqs+cluster://{login}@{node.address}{query}" for node in cluster.nodes[:2])


@pytest.mark.parametrize(("user", "place"), [("", "url"), (USER, "settings")], ids=["password", "acl-user"])
def test_tasks_and_results(
    tls_cluster: Cluster, certificates: Certificates, ledger: Ledger, user: str, place: str
) -> None:
    login = f"{user}:{quote(PASSWORD if user else _ADMIN, safe='')}"
    authority = str(certificates.authority)
    in_url = f"?ssl_cert_reqs=required&ssl_ca_certs={quote(authority, safe='')}"
    url = url_of(tls_cluster, login, in_url if place == "url" else "")
    options = {"ssl_ca_certs": authority}
    conf = {"result_backend": url}
    if place == "settings":
        conf |= {"broker_use_ssl": options, "redis_backend_use_ssl": options}
    with (
        publisher(url, ledger.url, **conf) as app,
        Worker("-Q", f"celery,{','.join(QUEUES)}", broker=url, ledger=ledger.url, conf=conf) as worker,
    ):
        add, total = app.tasks["add"], app.tasks["total"]
        waiting = add.apply_async((1, 1), countdown=3600, queue=QUEUES[0])
        assert app.delayq.cancel(waiting.id)
        results = [
            add.apply_async((number, 1), queue=queue, countdown=countdown)
            for number, queue in enumerate(QUEUES)
            for countdown in (None, 0.3)
        ]
        assert sorted(result.get(timeout=30) for result in results) == sorted([*range(1, 7), *range(1, 7)])
        assert chord([add.s(n, n) for n in range(5)], total.s()).apply_async().get(timeout=30) == 20
        wait_until(lambda: app.control.ping(timeout=2), "the worker answers")
        assert "Traceback" not in worker.log
        del waiting, results  # they unsubscribe when they are collected, for which their server must still be there


def test_a_node_without_a_known_authority_is_refused(tls_cluster: Cluster, ledger: Ledger) -> None:
    url = url_of(tls_cluster, f":{quote(_ADMIN, safe='')}")
    with publisher(url, ledger.url, result_backend=url) as app:
        with pytest.raises(OperationalError, match="certificate verify failed"):
            app.tasks["note"].delay()
        with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            app.backend.client.ping()

"""`result_backend = "delayq://..."`: Celery's own Redis backend, in processes that import nothing of ours.

And an app without a result backend.
"""

from __future__ import annotations

import gc
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group
from celery.backends.redis import RedisBackend
from celery.result import AsyncResult

from celery_delayq import ConfigurationError, DelayQ
from celery_delayq.results import SentinelResults
from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


#: What an app with a URL of Sentinels has to say.
NAMED = {"result_backend_transport_options": {"master_name": "shop"}}


@contextmanager
def results(url: str, **conf: Any) -> Iterator[Any]:
    """The result backend of an app."""
    app = Celery("results", backend=url, set_as_current=False)
    app.conf.update(conf)
    yield app.backend
    gc.collect()
    app.close()


def keeps_a_result(backend: Any, expected: int = 42) -> None:
    """Store a result, and get it as a producer does."""
    backend.store_result("the-id", expected, "SUCCESS")
    assert AsyncResult("the-id", backend=backend).get(timeout=10) == expected


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [
        ("delayq://u:p%20w@h:1/2", RedisBackend, {"host": "h", "port": 1, "db": 2, "username": "u", "password": "p w"}),
        ("delayq://", RedisBackend, {"host": "localhost", "port": 6379, "db": 0}),
        ("delayq", RedisBackend, {"host": "localhost", "port": 6379, "db": 0}),
        ("delayq+socket:///run/redis.sock?virtual_host=3", RedisBackend, {"path": "/run/redis.sock", "db": 3}),
        (
            "delayq+sentinel://a:1/4;delayq+sentinel://b:2/4",
            SentinelResults,
            {"db": 4, "hosts": [{"host": "a", "port": 1}, {"host": "b", "port": 2}]},
        ),
    ],
)
def test_the_url_says_where(url: str, kind: type, expected: dict[str, Any]) -> None:
    with results(url, **NAMED) as backend:
        assert type(backend) is kind
        found = {name: backend.connparams[name] for name in expected}
        if "hosts" in found:
            found["hosts"] = [{name: host[name] for name in ("host", "port")} for host in found["hosts"]]
        assert found == expected


@pytest.mark.parametrize(
    ("url", "conf", "expected"),
    [
        ("delayqs://h", {}, {"ssl_cert_reqs": 2}),
        ("delayqs://h/1?ssl_ca_certs=%2Fca.pem", {}, {"ssl_cert_reqs": 2, "ssl_ca_certs": "/ca.pem", "db": 1}),
        ("delayqs://h?ssl_cert_reqs=none", {}, {"ssl_cert_reqs": 0}),
        ("delayqs://h", {"redis_backend_use_ssl": {"ssl_ca_certs": "ca"}}, {"ssl_cert_reqs": 2, "ssl_ca_certs": "ca"}),
        ("delayqs://h", {"redis_backend_use_ssl": {"ssl_cert_reqs": "none"}}, {"ssl_cert_reqs": 0}),
    ],
)
def test_over_tls_certificates_are_verified_unless_told_otherwise(
    url: str, conf: dict[str, Any], expected: dict[str, Any]
) -> None:
    with results(url, **conf) as backend:
        assert backend.connparams["connection_class"].__name__ == "SSLConnection"
        assert {name: backend.connparams[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("query", "conf", "expected"),
    [
        ("", {}, {"ssl_cert_reqs": "required"}),
        ("?ssl_ca_certs=%2Fca.pem", {}, {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem"}),
        ("?ssl_cert_reqs=none", {}, {"ssl_cert_reqs": "none"}),
        ("", {"ssl_ca_certs": "ca"}, {"ssl_cert_reqs": "required", "ssl_ca_certs": "ca"}),
        ("", {"ssl_cert_reqs": "none"}, {"ssl_cert_reqs": "none"}),
        ("?ssl_cert_reqs=CERT_REQUIRED", {}, {"ssl_cert_reqs": "required"}),
        ("", {"ssl_cert_reqs": "CERT_NONE"}, {"ssl_cert_reqs": "none"}),
    ],
)
def test_over_tls_the_sentinels_have_the_options_of_the_master(
    query: str, conf: dict[str, Any], expected: dict[str, Any]
) -> None:
    url = f"delayqs+sentinel://a:1/4{query};delayqs+sentinel://b:2/4"
    with results(url, redis_backend_use_ssl=conf, **NAMED) as backend:
        assert [(host["host"], host["port"]) for host in backend.connparams["hosts"]] == [("a", 1), ("b", 2)]
        (pool, *others) = (
            sentinel.connection_pool for sentinel in backend.client.connection_pool.sentinel_manager.sentinels
        )
        assert len(others) == 1
        assert issubclass(pool.connection_class, redis.SSLConnection)
        assert {name: value for name, value in pool.connection_kwargs.items() if name in expected} == expected
        expected["ssl_cert_reqs"] = ssl.CERT_NONE if expected["ssl_cert_reqs"] == "none" else ssl.CERT_REQUIRED
        given = backend.client.connection_pool.connection_kwargs
        assert issubclass(backend.client.connection_pool.connection_class, redis.SSLConnection)
        assert {name: value for name, value in given.items() if name in expected} == expected
        assert given["db"] == 4


@pytest.mark.parametrize("schemes", [("delayqs", "delayq"), ("delayq", "delayqs")])
def test_if_one_of_several_hosts_asks_for_tls_nothing_is_sent_in_the_clear(schemes: tuple[str, str]) -> None:
    with results(";".join(f"{scheme}+sentinel://{scheme}:1" for scheme in schemes), **NAMED) as backend:
        pool = backend.client.connection_pool
        for one in (pool, *(sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels)):
            assert issubclass(one.connection_class, redis.SSLConnection)
    with results(";".join(f"{scheme}+cluster://{scheme}:1" for scheme in schemes)) as backend:
        assert issubclass(backend.connparams["connection_class"], redis.SSLConnection)
        assert backend.connparams["ssl_cert_reqs"] == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("delayq://a;delayq://b", "one server"),
        ("delayq+tcp://h", r"delayq\+tcp"),
        ("delayqs+socket:///run/redis.sock", r"delayqs\+socket"),
        ("delayqs://a;delayqs://b", "one server"),
    ],
)
def test_what_cannot_be_says_so(url: str, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match), results(url):
        pass


def test_a_url_of_sentinels_without_the_name_of_the_master_says_so() -> None:
    match = r"result_backend_transport_options = .*master_name"
    with pytest.raises(ConfigurationError, match=match), results("delayq+sentinel://a:1/0"):
        pass


def test_what_is_set_for_sentinels_wins() -> None:
    conf = {"result_backend_transport_options": {"master_name": "shop", "sentinel_kwargs": {"socket_timeout": 3}}}
    with results("delayq+sentinel://a:1/0", **conf) as backend:
        (sentinel,) = backend.client.connection_pool.sentinel_manager.sentinels
        given = sentinel.connection_pool.connection_kwargs
        assert (given["socket_timeout"], given["socket_connect_timeout"]) == (3, 0.5)


def test_over_a_unix_socket(redis_server: PrivateRedis) -> None:
    with results(f"delayq+socket://{redis_server.socket_path}?virtual_host=7") as backend:
        keeps_a_result(backend)
    with redis_server.client(db=7) as client:
        assert client.exists("celery-task-meta-the-id")


READ = """
import json, sys
from celery import Celery
from celery.result import AsyncResult

app = Celery("reader", backend=sys.argv[1])
print(json.dumps([AsyncResult(task_id, app=app).get(timeout=20) for task_id in sys.argv[2:]]))
assert "celery_delayq.app" not in sys.modules, "Celery imports what it needs of it"
"""


@pytest.mark.parametrize(("scheme", "pool"), [("delayq", "prefork"), ("delayq", "threads"), ("redis", "prefork")])
def test_results_groups_and_chords(
    redis_server: PrivateRedis, broker_url: str, ledger: Ledger, scheme: str, pool: str
) -> None:
    url = f"{scheme}://127.0.0.1:{redis_server.port}/7"
    conf = {"result_backend": url}
    with (
        Worker(pool=pool, broker=broker_url, ledger=ledger.url, conf=conf),
        publisher(broker_url, ledger.url, **conf) as app,
    ):
        add, total = app.tasks["add"], app.tasks["total"]
        assert add.delay(1, 2).get(timeout=20) == 3
        assert add.apply_async((1, 2), countdown=0.2).get(timeout=20) == 3
        assert group(add.s(n, n) for n in range(3))().get(timeout=20) == [0, 2, 4]
        assert chain(add.s(1, 2), add.s(3))().get(timeout=20) == 6
        result = chord([add.s(n, n) for n in range(3)], total.s())()
        assert result.get(timeout=20) == 6

        command = [sys.executable, "-c", READ, url, result.id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == [6]
        celery = [sys.executable, "-m", "celery", "--result-backend", url, "result", result.id]
        assert subprocess.run(celery, capture_output=True, text=True, timeout=60, check=True).stdout == "6\n"


@pytest.mark.parametrize("is_made", [False, True])
def test_threads_share_the_backend_of_an_app_that_has_none(broker_url: str, is_made: bool) -> None:
    """Celery makes one for each, and so for the greenlet of each task."""
    app = Celery("none", broker=broker_url, set_as_current=False)
    made = [app.backend] if is_made else []
    DelayQ(app)
    made.append(app.backend)
    with ThreadPoolExecutor(1) as other:
        made.append(other.submit(lambda: app.backend).result())
    assert len(set(map(id, made))) == 1

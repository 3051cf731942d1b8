"""The endpoint: a command, a WSGI app and an ASGI app, with and without Redis."""

from __future__ import annotations

import asyncio
import gzip
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.metrics import endpoint, make_asgi_app, make_wsgi_app
from celery_delayq.metrics.source import Source
from examples.private_redis import PrivateRedis
from tests.cli.running import failed, run
from tests.metrics.parsing import parsed
from tests.state import FAR, publish
from tests.support import in_a_child, wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand

READY = "delayq_ready_messages"


def wsgi(app: Any, **environ: str) -> tuple[str, dict[str, str], str]:
    """Return status, headers and body of the answer to a request."""
    answered: list[Any] = []
    setup_testing_defaults(environ)
    body = b"".join(app(environ, lambda status, headers: answered.extend((status, headers))))
    return answered[0], dict(answered[1]), body.decode()


def asgi(app: Any, method: str = "GET") -> tuple[int, str]:
    """Return status and body of the answer to a request."""
    sent = asgi_messages(app, method=method)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent).decode()


def asgi_messages(app: Any, **scope: Any) -> list[dict[str, Any]]:
    """Return the messages of the answer to a request."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    defaults = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": []}
    asyncio.run(app({**defaults, **scope}, receive, send))
    return sent


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def away(ledger_url: str, free_port: int) -> Iterator[Celery]:
    """An app whose server is away."""
    with publisher(f"delayq://user:s3cret@127.0.0.1:{free_port}/0", ledger_url) as app:
        yield app


def test_both_apps_answer_with_the_metrics(app: Celery, waiting: DelayedQueue) -> None:
    publish(waiting, b"1", b"2")
    status, headers, body = wsgi(make_wsgi_app(app))
    assert status == "200 OK"
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert parsed(body).get(READY) == 2
    status_code, body = asgi(make_asgi_app(app))
    assert status_code == 200
    assert parsed(body).get(READY) == 2


def test_another_method_is_not_answered_with_metrics(app: Celery) -> None:
    status, _, body = wsgi(make_wsgi_app(app), REQUEST_METHOD="POST")
    assert status.startswith("405")
    assert READY not in body
    status_code, body = asgi(make_asgi_app(app), "POST")
    assert status_code == 405
    assert READY not in body


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_both_answer_as_prometheus_asks(app: Celery, waiting: DelayedQueue, accept: str) -> None:
    """In its formats, and compressed. A choice of names is not taken: all are answered."""
    query = "name[]=delayq_ready_messages"
    answered: dict[str, Any] = {}
    environ = {"HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": "gzip", "QUERY_STRING": query}
    setup_testing_defaults(environ)
    parts = make_wsgi_app(app)(environ, lambda status, headers: answered.update(headers))
    body = gzip.decompress(b"".join(parts)).decode()
    assert answered["Content-Type"].startswith(accept.partition(";")[0])
    assert "delayq_consumers{" in body
    headers = [(b"accept", accept.encode()), (b"accept-encoding", b"gzip")]
    sent = asgi_messages(make_asgi_app(app), headers=headers, query_string=query.encode())
    assert dict(sent[0]["headers"])[b"Content-Type"].startswith(accept.partition(";")[0].encode())
    assert "delayq_consumers{" in gzip.decompress(sent[1]["body"]).decode()


def test_head_is_answered_without_a_body(app: Celery, away: Celery, waiting: DelayedQueue) -> None:
    status, headers, body = wsgi(make_wsgi_app(app), REQUEST_METHOD="HEAD")
    assert (status, body) == ("200 OK", "")
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert asgi(make_asgi_app(app), "HEAD") == (200, "")
    assert wsgi(make_wsgi_app(away), REQUEST_METHOD="HEAD")[0].startswith("503")
    assert asgi(make_asgi_app(away), "HEAD") == (503, "")


def test_a_websocket_is_refused(app: Celery) -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(make_asgi_app(app)({"type": "websocket", "path": "/metrics"}, None, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_client_that_says_nothing_is_hung_up_on(
    app: Celery, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint._Silent, "timeout", 0.2)
    with endpoint.server_at("127.0.0.1", 0, Source(app)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
                client.sendall(b"GET /met")
                assert client.recv(1) == b""
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
                assert answer.status == 200
        finally:
            server.shutdown()
    assert "Traceback" not in capfd.readouterr().err


def test_both_say_that_redis_is_away_and_no_password(away: Celery, free_port: int) -> None:
    status, _, body = wsgi(make_wsgi_app(away))
    assert status.startswith("503")
    assert body.startswith(f"cannot read the metrics from delayq://user:**@127.0.0.1:{free_port}/0: ")
    assert "s3cret" not in body
    assert asgi(make_asgi_app(away)) == (503, body)


def test_an_app_of_another_broker_is_told_what_to_write(ledger_url: str) -> None:
    with closing(Celery("stock", broker="redis://127.0.0.1:1/0", set_as_current=False)) as app:
        status, _, body = wsgi(make_wsgi_app(app))
        assert status.startswith("503")
        assert "start the URL with delayq://" in body
        failed(run(app, "metrics", "--once"), "start the URL with delayq://")


def test_an_endpoint_goes_on_after_an_outage(ledger_url: str) -> None:
    with PrivateRedis() as server, publisher(f"delayq://127.0.0.1:{server.port}/0", ledger_url) as app:
        endpoint = make_wsgi_app(app)
        assert wsgi(endpoint)[0] == "200 OK"
        server.kill()
        assert wsgi(endpoint)[0].startswith("503")
        server.start()
        assert wsgi(endpoint)[0] == "200 OK"


def test_a_forked_child_has_a_connection_of_its_own(app: Celery, waiting: DelayedQueue) -> None:
    endpoint = make_wsgi_app(app)
    wsgi(endpoint)
    assert in_a_child(lambda: wsgi(endpoint)[0] == "200 OK")
    assert wsgi(endpoint)[0] == "200 OK"


def test_without_prometheus_client_an_error_says_what_to_install(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("prometheus_client", "celery_delayq.metrics."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    import celery_delayq.metrics

    for name in ("endpoint", "collector"):
        monkeypatch.delattr(celery_delayq.metrics, name, raising=False)
    with pytest.raises(ConfigurationError, match="pip install prometheus-client; or in a clone"):
        make_wsgi_app(app)
    failed(run(app, "metrics", "--once"), "in a clone of celery_delayq, pip install '.[metrics]'")


def test_once_prints_the_metrics(app: Celery, waiting: DelayedQueue) -> None:
    publish(waiting, b"1")
    done = run(app, "metrics", "--once")
    assert done.code == 0, done
    assert parsed(done.stdout).get(READY) == 1


def test_once_prints_names_as_prometheus_wants_them(app: Celery, broker_client: redis.Redis) -> None:
    names = {"q\x1b[31m", "q\rq", "q\u2028q", 'q"q', "q\nq"}
    for name in names:
        broker_client.zadd("delayq:queues", {name: FAR})
    done = run(app, "metrics", "--once")
    assert names <= {labels["queue_name"] for labels in parsed(done.stdout).named(READY)}


def test_a_database_that_is_no_number_is_said(ledger_url: str) -> None:
    with publisher("delayq://127.0.0.1:1/x", ledger_url) as app:
        failed(run(app, "metrics", "--once"), "wrong broker URL or broker_transport_options: Database is int")


def test_once_fails_without_redis(away: Celery) -> None:
    failed(run(away, "metrics", "--once"), "cannot read the metrics from delayq://user:**@127.0.0.1")


def test_a_port_that_is_taken_is_an_error(app: Celery) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        failed(run(app, "metrics", "--host", "127.0.0.1", "--port", port), f"cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_told_to_end(
    number: signal.Signals, app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str, free_port: int
) -> None:
    publish(waiting, b"1")
    options = ("--host", "127.0.0.1", "--port", str(free_port))
    with CeleryCommand("delayq", "metrics", *options, broker=broker_url, ledger=ledger_url) as command:
        command.wait_for_log("Press Ctrl-C")
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics") as answer:
            assert parsed(answer.read().decode()).get(READY) == 1
        command.send_signal(number)
        assert command.wait() == 0
        assert "Traceback" not in command.log


def test_the_command_starts_without_redis(away: Celery, ledger_url: str) -> None:
    with PrivateRedis() as server:
        url = f"delayq://127.0.0.1:{server.port}/0"
        server.kill()
        with CeleryCommand("delayq", "metrics", "--port", "0", broker=url, ledger=ledger_url) as command:
            command.wait_for_log("Press Ctrl-C")
            address = command.log.partition(" at http://0.0.0.0:")[2].partition(" (Press")[0]
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"http://127.0.0.1:{address}")
            assert caught.value.code == 503
            assert b"cannot read the metrics" in caught.value.read()
            caught.value.close()
            server.start()

            def answers() -> bool:
                with urllib.request.urlopen(f"http://127.0.0.1:{address}") as answer:
                    return bool(answer.status == 200)

            wait_until(answers, "it answers")

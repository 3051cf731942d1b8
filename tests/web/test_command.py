"""`celery delayq web`: what it refuses, who gets in, and how it ends."""

from __future__ import annotations

import http.client
import re
import signal
import socket
from typing import Any

import pytest
import redis
from celery import Celery

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.cli.running import failed, is_wrong_use, run
from tests.web import direct
from tests.web.shop import make_app
from tests.web.sites import Site, standalone

app, client = direct.app, direct.client


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "shop.example", "127.0.0.2", ""])
def test_everybody_is_let_in_only_on_purpose(app: Celery, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_wrong_use(run(app, "web", "--host", host, "--port", "0"), "set DELAYQ_WEB_PASSWORD, or pass --insecure")
    monkeypatch.setenv("DELAYQ_WEB_PASSWORD", "")
    is_wrong_use(run(app, "web", "--host", host), "set DELAYQ_WEB_PASSWORD")


def test_an_empty_password_is_refused(app: Celery) -> None:
    is_wrong_use(run(app, "web", "--password", "", "--port", "0"), "password is empty")


def test_a_wrong_broker_is_refused() -> None:
    for url, word in (("redis://127.0.0.1:1/0", "delayq"), ("nonsense://x", "broker")):
        app = make_app(url, "redis://127.0.0.1:1/0")
        done = run(app, "web", "--port", "0")
        failed(done, word)
        app.close()


def test_an_address_that_cannot_be_had_is_said(redis_server: PrivateRedis) -> None:
    taken, foreign = ("--port", str(redis_server.port)), ("--host", "192.0.2.1", "--insecure")
    for options, words in ((taken, f"127.0.0.1:{redis_server.port}: "), (foreign, "192.0.2.1:0: ")):
        # In a process of its own: waitress leaves its pipes to the garbage collector.
        site = served(redis_server, *options)
        site.start()
        assert site.wait() == 1, site.log
        assert f"Error: cannot listen on {words}" in site.log
        site.__exit__()


@pytest.fixture
def filled(app: Celery) -> None:
    for task_id in ("a", "b"):
        app.tasks["shop.orders.remind"].apply_async((1,), task_id=task_id, countdown=3600)


def served(server: PrivateRedis, *options: str, **kwargs: Any) -> Site:
    return standalone(*options, broker=brokers.url_of(server), ledger=server.url, **kwargs)


def ask(site: Site, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
    found = re.search(r"//127\.0\.0\.1:(\d+)", site.url) or re.search(r":(\d+)/", site.url)
    assert found is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


CANCEL = "action=cancel&confirmed=yes&id="


def test_with_a_password(redis_server: PrivateRedis, client: redis.Redis, filled: None) -> None:
    options = ("--host", "0.0.0.0", "--allow-host", "Shop.Example")
    with served(redis_server, *options, env={"DELAYQ_WEB_PASSWORD": "s3cret"}) as site:
        right, wrong = "Basic YW5uOnMzY3JldA==", "Basic YW5uOndyb25n"
        assert ask(site, "GET", "/")[0] == 401
        assert ask(site, "GET", "/", Authorization=wrong)[0] == 401
        assert ask(site, "GET", "/", Authorization=right)[0] == 200
        assert ask(site, "GET", "/", Authorization=right, Host="shop.example:80")[0] == 200
        assert ask(site, "GET", "/", Authorization=right, Host=f"{socket.gethostname()}:80")[0] == 200
        assert ask(site, "GET", "/", Authorization=right, Host="evil.example")[0] == 421
        assert ask(site, "POST", "/waiting", CANCEL + "a", Authorization=right)[0] == 403
        own = {"Sec_Fetch_Site": "same-origin"}
        assert ask(site, "POST", "/waiting", CANCEL + "a", Authorization=wrong, **own)[0] == 401
        status, text = ask(site, "POST", "/waiting", CANCEL + "a", Authorization=right, **own)
        assert (status, "1 task cancelled." in text) == (200, True)
        site.wait_for_log("cancel by ann from 127.0.0.1: a: 1 done, 0 not")
        assert "s3cret" not in site.log
        site.send_signal(signal.SIGTERM)
        assert site.wait() == 0


def test_read_only_and_insecure(redis_server: PrivateRedis, filled: None) -> None:
    with served(redis_server, "--read-only", "--insecure", "--host", "0.0.0.0") as site:
        assert ask(site, "GET", "/waiting")[0] == 200
        for body in (CANCEL + "a", "action=cancel&id=a", "action=run_now&scope=matching&confirmed=yes"):
            assert ask(site, "POST", "/waiting", body, Sec_Fetch_Site="same-origin")[0] == 403
        assert ask(site, "POST", "/waiting", "x" * 1_500_000, Sec_Fetch_Site="same-origin")[0] == 413
        assert ask(site, "GET", "/%ff%00/%C3%A9")[0] == 404
        site.send_signal(signal.SIGINT)
        assert site.wait() == 0


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELAYQ_WEB_PASSWORD", raising=False)

"""The page is the same by WSGI, by ASGI and in Django, at the root and below a prefix."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import pytest
import redis
from celery import Celery

from celery_delayq.web import make_asgi_app, make_wsgi_app
from celery_delayq.web.request import MOST_BODY, MOST_FIELDS
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.support import in_a_child
from tests.web import direct
from tests.web.direct import OWN, Answer, User, dump, user_of

app, client = direct.app, direct.client

T = TypeVar("T")

_REPOSITORY = Path(__file__).parents[2]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: Playwright may have a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class AsgiUser(User):
    """Asks an ASGI app.

    Args:
        kept: whether the server leaves the mount in the path, as newer ones do.
    """

    def __init__(self, application: Any, mount: str = "", *, kept: bool = True, **headers: str) -> None:
        super().__init__(application, mount, **headers)
        self.kept = kept

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        **scope: Any,
    ) -> Answer:
        text = query if isinstance(query, str) else urlencode(list(query.items()))
        pairs = [
            (name.lower().encode(), value.encode("latin-1"))
            for name, value in {**self.headers, **(headers or {})}.items()
        ]
        if method == "POST":
            pairs.append((b"content-length", str(len(body)).encode()))
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        found = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": method,
            "path": f"{self.mount}{path}" if self.kept else path,
            "root_path": self.mount,
            "query_string": text.encode("latin-1"),
            "headers": pairs,
            "client": ("192.0.2.1", 50000),
            **scope,
        }
        (status, sent, answered) = run(ask_asgi(self.application, found, messages))
        return Answer(status, sent, answered, f"{quote(path)}?{text}" if text else quote(path))


async def ask_asgi(
    application: Any, scope: dict[str, Any], messages: Iterable[dict[str, Any]]
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body; the status is 0 if nothing was answered."""
    coming, sent = iter(messages), []

    async def receive() -> dict[str, Any]:
        return next(coming)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    if not sent:
        return 0, {}, b""
    start, *parts = sent
    assert start["type"] == "http.response.start"
    assert all(name == name.lower() for name, _ in start["headers"])
    headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return start["status"], headers, b"".join(part.get("body", b"") for part in parts)


MOUNT = "/ops/delayq"

USERS: dict[str, Callable[[Celery], User]] = {
    "wsgi": user_of,
    "wsgi below": lambda app: User(user_of(app).application, MOUNT),
    "asgi": lambda app: AsgiUser(make_asgi_app(app, access=lambda request: "all")),
    "asgi below": lambda app: AsgiUser(make_asgi_app(app, access=lambda request: "all"), MOUNT),
    "asgi below, path without": lambda app: AsgiUser(
        make_asgi_app(app, access=lambda request: "all"), MOUNT, kept=False
    ),
}


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest, app: Celery) -> User:
    return USERS[request.param](app)


def test_each_adapter_answers_the_same(user: User, app: Celery, client: redis.Redis) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a/ü?%", countdown=3600)
    assert user.get("/").title == "Overview"
    assert user.get("/waiting", {"text": "reminded"}).page.form("cancel").action == "waiting?text=reminded"
    assert user.get("/task", {"id": "a/ü?%"}).status == 200
    assert user.get("/nowhere").status == 404
    assert user.get("/nowhere/ü\u4efb").status == 404
    assert user.get("//").status == 404
    assert user.get("/waiting/").status == 404
    assert user.get("/../web/__init__.py").status == 404
    assert user.get("/web.css").headers["content-type"] == "text/css; charset=utf-8"
    head = user.ask("HEAD", "/waiting")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    assert user.ask("DELETE", "/waiting").status == 405
    assert user.get("/waiting", "lang=zh&text=x").headers["location"] == "waiting?text=x"
    asked = user.act("/waiting", "cancel", {"text": "x"}, id="nobody")
    assert "no longer waiting" in asked.page.text
    question = user.post("/waiting", {"action": "cancel", "id": "a%2F%C3%BC%3F%25"})
    assert question.title == "Cancel 1 task"
    done = user.submit(question, "cancel")
    assert "1 task cancelled." in done.page.text


def test_the_root_without_a_slash_leads_to_the_page(user: User) -> None:
    answer = user.get("")
    assert answer.status == 303
    assert answer.headers["location"] == ("delayq/" if user.mount else "/")
    assert user.post("").status == 405


@pytest.mark.parametrize("mount", ["/ops/任务", "/ops/a b%", "/x/javascript:alert(1)", "/x/a\r\nb"])
def test_a_mount_may_have_any_name(app: Celery, mount: str) -> None:
    for user in (
        User(user_of(app).application, mount.encode().decode("latin-1")),
        AsgiUser(make_asgi_app(app, access=lambda request: "all"), mount),
    ):
        location = user.get("").headers["location"]
        assert location == quote(mount.rpartition("/")[2], safe="") + "/"
        assert user.get("/").title == "Overview"


def test_a_path_that_begins_like_the_mount_is_not_below_it(app: Celery) -> None:
    user = AsgiUser(make_asgi_app(app, access=lambda request: "all"), "/w", kept=False)
    assert user.get("/waiting").title == "Waiting"
    slash = AsgiUser(make_asgi_app(app, access=lambda request: "all"), "", kept=False)
    assert slash.ask("GET", "/ops/waiting", root_path="/ops/").title == "Waiting"


@pytest.mark.parametrize(
    "query", ["text=%ff%fe", "text=\xff", "text=\xc3\xa9", "text=%ED%A0%80", "text=%zz%", "text=%00", "text=a;b"]
)
def test_odd_encodings_are_kept(user: User, query: str) -> None:
    answer = user.get("/waiting", query)
    assert answer.status == 200
    found = [attributes for _, attributes in answer.page.elements if attributes.get("name") == "text"]
    shown = {"text=\xc3\xa9": "é", "text=%zz%": "%zz%", "text=a;b": "a;b", "text=%00": "\x00", "text=\xff": "?"}
    assert found[0]["value"] == shown.get(query, found[0]["value"])
    action = answer.page.form("cancel").action
    again = user.get("/waiting", action.partition("?")[2])
    assert again.page.form("cancel").action == action


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x=" + b"a" * (MOST_BODY - 2), 400),  # no action
        (b"x=" + b"a" * (MOST_BODY - 1), 413),
        (b"x&" * MOST_FIELDS, 400),
        (b"&".join([b"id=a"] * (MOST_FIELDS + 1)), 400),
        (b"\xff\xfe\x00", 400),
        (b"", 400),
        (b'{"action": "cancel"}', 400),
        (b"action=cancel", 400),  # nothing is selected
    ],
    ids=["long", "too long", "fields", "too many fields", "bytes", "empty", "JSON", "no ids"],
)
def test_a_form_that_cannot_be_read_is_refused(user: User, body: bytes, status: int) -> None:
    answer = user.post("/waiting", body)
    assert answer.status == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "length", ["-1", "1000000000000", "x", "1.5", "+5", "\u0665", "00000000000000000000005", "6", "4"]
)
def test_a_wrong_length_is_refused(app: Celery, client: redis.Redis, length: str) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    before = dump(client)
    body = b"action=cancel&confirmed=yes&id=a"
    answer = user_of(app).ask("POST", "/waiting", "", body, OWN, CONTENT_LENGTH=length)
    assert answer.status == (413 if length == "1000000000000" else 400), answer.text
    assert dump(client) == before


def test_a_body_in_chunks_is_read_where_the_server_ends_it(app: Celery, client: redis.Redis) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    body = b"action=cancel&confirmed=yes&id=a"
    user = user_of(app)
    assert user.ask("POST", "/waiting", "", body, OWN, CONTENT_LENGTH="").status == 400  # there may be no end
    too_long = user.ask(
        "POST", "/waiting", "", b"a" * (MOST_BODY + 1), OWN, CONTENT_LENGTH="", **{"wsgi.input_terminated": True}
    )
    assert too_long.status == 413
    answer = user.ask("POST", "/waiting", "", body, OWN, CONTENT_LENGTH="", **{"wsgi.input_terminated": True})
    assert "1 task cancelled." in answer.page.text


class Dripping(BytesIO):
    """A connection that gives a byte at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size >= 0
        return super().read(min(size, 1))


def test_a_body_may_come_slowly(app: Celery) -> None:
    body = b"action=cancel&confirmed=yes&id=a"
    answer = user_of(app).ask("POST", "/waiting", "", body, OWN, **{"wsgi.input": Dripping(body)})
    assert "0 tasks cancelled." in answer.page.text


# -- ASGI alone


def scope_of(**more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/waiting",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"h"), (b"sec-fetch-site", b"same-origin")],
        "client": None,
        **more,
    }


def ask(
    app: Celery, scope: dict[str, Any], *messages: dict[str, Any], access: Any = None
) -> tuple[int, dict[str, str], bytes]:
    application = make_asgi_app(app, access=access or (lambda request: "all"))
    return run(ask_asgi(application, scope, messages))


@pytest.mark.parametrize("make", [make_asgi_app, make_wsgi_app])
def test_who_may_see_the_page_must_be_said(app: Celery, make: Callable[..., Any]) -> None:
    for access in ({}, {"access": "read"}):
        with pytest.raises(TypeError, match=r"access must be .*'read' or 'all'.*access=lambda request: 'read'"):
            make(app, **access)


def test_a_client_that_goes_in_the_middle_changes_nothing(app: Celery, client: redis.Redis) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    before = dump(client)
    part = {"type": "http.request", "body": b"action=cancel&confirmed=yes&id=a", "more_body": True}
    assert ask(app, scope_of(), part, {"type": "http.disconnect"})[0] == 0
    assert ask(app, scope_of(), {"type": "http.disconnect"})[0] == 0
    short = {**part, "more_body": False}
    headers = [*scope_of()["headers"], (b"content-length", b"40")]
    assert ask(app, scope_of(headers=headers), short)[0] == 400
    assert dump(client) == before


def test_a_body_comes_in_parts(app: Celery) -> None:
    body = b"action=cancel&confirmed=yes&id=a"
    parts = [{"type": "http.request", "body": body[at : at + 1], "more_body": True} for at in range(len(body))]
    status, _, answered = ask(app, scope_of(), *parts, {"type": "http.request"})
    assert status == 200
    assert b"0 tasks cancelled." in answered
    big = {"type": "http.request", "body": b"a" * 100_000, "more_body": True}
    assert ask(app, scope_of(), *[big] * 11)[0] == 413


def test_headers_that_come_twice_are_one(app: Celery) -> None:
    seen: list[Mapping[str, str]] = []

    def access(request: Any) -> str:
        seen.append(request.headers)
        return "all"

    pairs = [
        (b"host", b"h"),
        (b"Cookie", b"delayq_language=zh"),
        (b"cookie", b"x=1"),
        (b"accept", b"a"),
        (b"accept", b"b"),
    ]
    ask(app, scope_of(method="GET", headers=pairs), {"type": "http.request"}, access=access)
    assert seen[0]["cookie"] == "delayq_language=zh; x=1"
    assert seen[0]["accept"] == "a, b"
    twice = [(b"host", b"h"), (b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"cross-site")]
    assert ask(app, scope_of(headers=twice), {"type": "http.request", "body": b"action=cancel"})[0] == 403
    origins = [(b"host", b"h"), (b"origin", b"http://h"), (b"origin", b"http://evil.example")]
    assert ask(app, scope_of(headers=origins), {"type": "http.request", "body": b"action=cancel"})[0] == 403


def test_the_user_of_a_middleware_is_known(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    class Ann:
        display_name = "Ann"

    message = {"type": "http.request", "body": b"action=cancel&confirmed=yes&id=a"}
    with caplog.at_level("INFO", "celery_delayq.web.audit"):
        ask(app, scope_of(user=Ann()), message)
        ask(app, scope_of(user=object()), message)
    assert [record.getMessage() for record in caplog.records if "cancel" in record.getMessage()] == [
        "cancel by Ann from -: a: 0 done, 1 not",
        "cancel by - from -: a: 0 done, 1 not",
    ]


def test_a_websocket_is_closed(app: Celery) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    run(make_asgi_app(app, access=lambda request: "all")({"type": "websocket", "path": "/"}, receive, send))
    assert sent == [{"type": "websocket.close"}]


def test_a_server_may_tell_that_it_starts_and_ends(app: Celery) -> None:
    application = make_asgi_app(app, access=lambda request: "all")
    sent: list[str] = []

    async def live() -> None:
        coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message["type"])

        life = asyncio.create_task(application({"type": "lifespan"}, coming.get, send))
        await coming.put({"type": "lifespan.startup"})
        status, _, _ = await ask_asgi(application, scope_of(method="GET"), [{"type": "http.request"}])
        assert status == 200
        await coming.put({"type": "lifespan.shutdown"})
        await life

    run(live())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_unknown_scope_is_an_error(app: Celery) -> None:
    with pytest.raises(ValueError, match="does not know"):
        ask(app, {"type": "telepathy"})


def test_asgi_works_after_a_fork(app: Celery) -> None:
    application = make_asgi_app(app, access=lambda request: "all")

    def status() -> int:
        return run(ask_asgi(application, scope_of(method="GET"), [{"type": "http.request"}]))[0]

    assert status() == 200  # starts a thread
    assert in_a_child(lambda: status() == 200)


# -- Django

_DJANGO = r"""
import json, os, sys
import django
from django.conf import settings
from django.urls import include, path

class Urls:
    urlpatterns = []

settings.configure(
    ALLOWED_HOSTS=["*"], DEBUG=False, ROOT_URLCONF=Urls, SECRET_KEY="x", USE_TZ=True,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
)
django.setup()
from django.core.wsgi import get_wsgi_application
from celery_delayq.web.django import urls
from tests.web.shop import make_app

app = make_app(os.environ["BROKER"], os.environ["LEDGER"])
seen = []
def access(request):
    seen.append(type(request.native).__name__)
    return "all"
Urls.urlpatterns = [path("ops/delayq/", include(urls(app, access=access))), path("", include(urls(app, access=access)))]

from tests.web.direct import User
user = User(get_wsgi_application())
out = []
for method, url, body, headers in json.load(sys.stdin):
    length = {"CONTENT_LENGTH": headers.pop("Content-Length")} if "Content-Length" in headers else {}
    url, _, query = url.partition("?")
    answer = user.ask(method, url, query, body.encode("latin-1"), headers, **length)
    out.append([answer.status, dict(answer.headers), answer.body.decode("utf-8", "replace")])
json.dump([out, sorted(set(seen))], sys.stdout)
"""


def test_django(app: Celery, client: redis.Redis, redis_server: PrivateRedis) -> None:
    for task_id in ("a", "b"):
        app.tasks["shop.orders.remind"].apply_async((1,), task_id=task_id, countdown=3600)
    cancel = "action=cancel&confirmed=yes&id="
    asked: list[tuple[str, str, str, dict[str, str], Callable[[int, dict[str, str], str], bool]]] = []

    def add(
        method: str, url: str, check: Callable[[int, dict[str, str], str], bool], body: str = "", **headers: str
    ) -> None:
        asked.append((method, url, body, {name.replace("_", "-"): value for name, value in headers.items()}, check))

    own = {"Sec_Fetch_Site": "same-origin"}
    for root in ("", "/ops/delayq"):
        add("GET", f"{root}/", lambda status, headers, text: status == 200 and "<h1>Overview</h1>" in text)
        add("GET", f"{root}/waiting?text=%C3%A9", lambda status, headers, text: status == 200 and 'value="é"' in text)
        add("GET", f"{root}/web.css", lambda status, headers, text: headers["content-type"].startswith("text/css"))
        add("GET", f"{root}/nowhere", lambda status, headers, text: status == 404 and "There is no such page" in text)
        add("HEAD", f"{root}/", lambda status, headers, text: status == 200 and text == "")
        add("PUT", f"{root}/", lambda status, headers, text: status == 405 and headers["allow"] == "GET, HEAD, POST")
        add("GET", f"{root}/waiting?lang=zh", lambda status, headers, text: headers["location"] == "waiting")
        add("POST", f"{root}/waiting", lambda status, headers, text: status == 403, cancel + "a")
        add("POST", f"{root}/waiting", lambda status, headers, text: status == 413, "x=" + "a" * MOST_BODY, **own)
        add("POST", f"{root}/waiting", lambda status, headers, text: status == 400, "&" * 3500, **own)
        add(
            "POST",
            f"{root}/waiting",
            lambda status, headers, text: status == 400,
            cancel + "a",
            Content_Length="90",
            **own,
        )
    add("GET", "/ops/delayq", lambda status, headers, text: status in (301, 404))  # the host's own business
    add("POST", "/waiting", lambda status, headers, text: "1 task cancelled." in text, cancel + "a", **own)
    add("POST", "/ops/delayq/waiting", lambda status, headers, text: "1 task cancelled." in text, cancel + "b", **own)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _DJANGO],
        input=json.dumps([one[:4] for one in asked]),
        env={
            **os.environ,
            "BROKER": brokers.url_of(redis_server),
            "LEDGER": redis_server.url,
            "CONF": "{}",
            "PYTHONPATH": str(_REPOSITORY),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, native = json.loads(done.stdout)
    assert native == ["WSGIRequest"]
    for (method, url, body, _, check), (status, headers, text) in zip(asked, answers, strict=True):
        assert check(status, headers, text), (method, url, body[:50], status, headers, text[:500])
        if url != "/ops/delayq":
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["x-frame-options"] == "DENY"

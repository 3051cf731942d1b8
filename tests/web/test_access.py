"""Who may do what: asked on the server, for every page, method and action."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.web.access import ACTIONS, Unauthorized, password_access
from celery_delayq.web.pages import PAGES
from celery_delayq.web.request import Params, Request
from tests.web import direct
from tests.web.direct import OWN, User, dump, user_of

app, client = direct.app, direct.client

PATHS = [page.path for page in PAGES]
EACH = [(page.path, action) for page in PAGES for action in page.actions]

#: Where a page has something to show or to change.
QUERIES = {
    "/task": {"id": "a"},
    "/dead": {"queue": "celery"},
    "/letter": {"queue": "celery", "letter": "0"},
    "/entry": {"name": "newsletter"},
}

#: All the fields that any action asks for.
FIELDS = {
    "id": "a",
    "when": "2h",
    "letter": "0",
    "name": "new",
    "queue": "celery",
    "task": "shop.carts.tidy",
    "arguments": "1",
}


@pytest.fixture
def filled(app: Celery, client: redis.Redis) -> dict[bytes, bytes | None]:
    """What is in the broker: a task and a periodic task."""
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    app.delayq.schedule.add("newsletter", "shop.carts.tidy", 60.0)
    return dump(client)


def fields_of(action: str) -> dict[str, str]:
    """Fields that are right for an action."""
    return {**FIELDS, "action": action, "when": "90s" if action.startswith("schedule.") else "2h"}


def all_but(action: str) -> list[str]:
    return [name for name in ACTIONS if name != action]


def test_each_action_has_a_page_and_each_page_has_known_actions() -> None:
    assert sorted(action for _, action in EACH) == sorted(ACTIONS)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_seen_by_all_who_may_see_anything(app: Celery, filled: dict[bytes, bytes | None], path: str) -> None:
    for access in (None, "read", "all", (), *[(action,) for action in ACTIONS]):
        user = user_of(app, access)
        seen = {method: user.ask(method, path, QUERIES.get(path, {})) for method in ("GET", "HEAD")}
        wanted = 403 if access is None else 404 if path in ("/letter", "/worker") else 200  # there are none
        assert {answer.status for answer in seen.values()} == {wanted}, access
        assert seen["HEAD"].body == b""
        offered = {value for form in seen["GET"].page.forms for name, value in form.buttons if name == "action"}
        assert offered <= {None: set(), "read": set(), "all": set(ACTIONS)}.get(access, set(access or ())), access


@pytest.mark.parametrize(("path", "action"), EACH, ids=str)
def test_only_who_may_do_it_does_it(
    app: Celery, client: redis.Redis, filled: dict[bytes, bytes | None], path: str, action: str
) -> None:
    for confirmed, scope in (("", ""), ("yes", ""), ("", "matching"), ("yes", "matching")):
        form = {**fields_of(action), "confirmed": confirmed, "scope": scope}
        for access in ("read", [], all_but(action), None):
            answer = user_of(app, access).post(path, form, QUERIES.get(path, {}))
            assert answer.status == 403
            assert dump(client) == filled
    if path == "/dead":
        return  # nothing is there: see the tests of that page
    form = {**fields_of(action), "confirmed": "yes"}
    answer = user_of(app, [action]).post(path, form, QUERIES.get(path, {}))
    assert answer.status == 200, answer.text
    assert (dump(client) != filled) == (not action.endswith(".resume"))  # it is not paused


def test_other_methods_are_refused(app: Celery, client: redis.Redis, filled: dict[bytes, bytes | None]) -> None:
    user = user_of(app)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND", ""):
        for path in (*PATHS, "", "/web.css", "/nowhere"):
            answer = user.ask(method, path, QUERIES.get(path, {}), b"action=cancel&confirmed=yes&id=a", OWN)
            assert answer.status == 405
            assert answer.headers["allow"] == ("GET, HEAD" if path in ("", "/web.css") else "GET, HEAD, POST")
    assert dump(client) == filled


@pytest.mark.parametrize("path", [*PATHS, "/web.css", "/favicon.svg"])
def test_a_page_has_no_other_actions(
    app: Celery, filled: dict[bytes, bytes | None], client: redis.Redis, path: str
) -> None:
    own = next((page.actions for page in PAGES if page.path == path), {})
    for action in {*ACTIONS, "", "nonsense", "__class__", "show"} - set(own):
        answer = user_of(app).post(path, fields_of(action) | {"confirmed": "yes"}, QUERIES.get(path, {}))
        assert answer.status == (405 if "." in path else 400)
    assert dump(client) == filled


def test_rubbish_from_access_is_an_error_and_does_nothing(
    app: Celery, client: redis.Redis, filled: dict[bytes, bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    texts = ("", "write", "cancel", "READ", b"all")
    for rubbish in (True, 1, 0, False, *texts, ["cancel", "erase"], [1], [[]], {"all": 1}, object()):
        user = user_of(app, lambda request, rubbish=rubbish: rubbish)
        caplog.clear()
        for answer in (user.get("/waiting"), user.act("/waiting", "cancel", id="a")):
            assert answer.status == 500, rubbish
            assert "See the log of the server" in answer.page.text
        logged = [record.levelno for record in caplog.records if record.name == "celery_delayq.web.site"]
        assert logged == [logging.ERROR] * 2
    assert dump(client) == filled


def test_an_error_in_access_is_an_error_and_shows_nothing_of_it(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    def access(request: Request) -> str:
        raise KeyError("the secret")

    answer = user_of(app, access).get("/")
    assert answer.status == 500
    assert "the secret" not in answer.text
    assert "the secret" in caplog.text


def test_access_may_ask_who_it_is(app: Celery) -> None:
    def access(request: Request) -> str:
        if request.user != "ann":
            raise Unauthorized
        return "read"

    user = user_of(app, access)
    for answer in (user.get("/"), user.act("/waiting", "cancel", id="a"), user.ask("HEAD", "/")):
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="celery_delayq", charset="UTF-8"'
    assert "A user name and the password are needed." in user.get("/").page.text
    assert user.get("/", Authorization="Basic YW5uOng=").status == 200
    assert user.ask("GET", "/", REMOTE_USER="ann").status == 200
    assert user.ask("GET", "/", {}, b"", {"Authorization": "Basic YW5uOng="}, REMOTE_USER="bob").status == 401


def test_access_gets_the_native_request(app: Celery) -> None:
    seen: list[Any] = []

    def access(request: Request) -> Iterable[str]:
        seen.append(request.native)
        return iter(["cancel"])

    assert user_of(app, access).ask("GET", "/", **{"my.key": 7}).status == 200
    assert seen[0]["my.key"] == 7


# -- where a change comes from


ORIGINS: list[tuple[dict[str, str], bool]] = [
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": ""}, False),
    ({"Sec-Fetch-Site": "same-origin, cross-site"}, False),
    # The browser's word counts more than what can be compared.
    ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:5556"}, False),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, True),
    # Browsers say nothing of the kind over plain HTTP.
    ({"Origin": "http://127.0.0.1:5556"}, True),
    ({"Origin": "https://127.0.0.1:5556"}, True),
    ({"Origin": "http://Shop.Example", "Host": "shop.example"}, True),
    ({"Origin": "http://127.0.0.1"}, False),
    ({"Origin": "http://127.0.0.1:5557"}, False),
    ({"Origin": "http://evil.example"}, False),
    ({"Origin": "http://127.0.0.1:5556.evil.example"}, False),
    ({"Origin": "http://evil.example/127.0.0.1:5556"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": ""}, False),
    ({"Origin": "", "Host": ""}, False),
    ({"Origin": "null", "Host": ""}, False),
    ({"Referer": "http://127.0.0.1:5556/waiting"}, False),
    ({}, False),
]


def test_a_change_comes_from_the_page_itself(
    app: Celery, client: redis.Redis, filled: dict[bytes, bytes | None]
) -> None:
    user = user_of(app)
    for headers, is_own in ORIGINS:
        before = dump(client)
        answer = user.ask("POST", "/entry", {"name": "newsletter"}, b"action=schedule.pause", headers)
        assert answer.status == (200 if is_own else 403), headers
        assert (dump(client) != before) == is_own, headers
        app.delayq.schedule.resume("newsletter")


NONSENSE = [
    "",
    "action=cancel&confirmed=yes&id=a&scope=matching",
    "action=schedule.remove&confirmed=yes&name=newsletter",
    "name=newsletter&action=schedule.run_now&confirmed=yes",
    "id=a&queue=celery&letter=0-0&cursor=nonsense",
    "queue=celery&task=shop&due_after=-1h&due_before=%2B2h&text=x",
    "queue=nowhere&letter=-&name=nobody&id=%00%ff",
    "span=999999999999999999999&from=-1&hours=72",
    "span=31536000&from=221845392000000&hours=nonsense",
    "span=1&from=1&due_after=%F0%9F&text=%ED%A0%80&queue=%ff&task=%00",
    "lang=zh",
    "lang=nonsense&lang=en",
    "&&&=&=x&x",
]


@pytest.mark.parametrize("path", PATHS)
def test_looking_changes_nothing(
    app: Celery, client: redis.Redis, filled: dict[bytes, bytes | None], path: str
) -> None:
    user = user_of(app)
    for query in NONSENSE:
        for method in ("GET", "HEAD"):
            for headers in (OWN, {**OWN, "X-Delayq-Live": "1"}):
                body = b"action=cancel&confirmed=yes&id=a"
                answer = user.ask(method, path, query, body, headers, CONTENT_LENGTH=str(len(body)))
                assert answer.status in (200, 303, 400, 404), (path, query, answer.text)
    assert dump(client) == filled


# -- passwords


def basic(text: bytes) -> str:
    from base64 import b64encode

    return "Basic " + b64encode(text).decode()


@pytest.mark.parametrize(
    ("header", "is_right"),
    [
        (basic(b"ann:s3cret:\xc3\xa9"), True),
        (basic(b":s3cret:\xc3\xa9"), True),
        (basic(b"ann:s3cret:\xc3\xa9").replace("Basic", "bAsIc"), True),
        (basic(b"ann:s3cret:"), False),
        (basic(b"ann:s3cret:\xc3\xa9 "), False),
        (basic(b"ann:S3cret:\xc3\xa9"), False),
        (basic(b"s3cret:\xc3\xa9"), False),
        (basic(b"ann"), False),
        (basic(b""), False),
        ("Basic", False),
        ("Basic !", False),
        ("Basic \u00e9", False),
        ("Bearer s3cret", False),
        (basic(b"ann:s3cret:\xc3\xa9").replace("Basic", "Digest"), False),
        ("", False),
    ],
)
def test_the_password_is_asked_for(header: str, is_right: bool) -> None:
    access = password_access("s3cret:é", "read")
    request = Request("GET", "/", Params(), {"authorization": header} if header else {})
    if is_right:
        assert access(request) == "read"
    else:
        with pytest.raises(Unauthorized):
            access(request)


def test_an_empty_password_is_none() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        password_access("")


def test_a_password_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: bool(compared.append((a, b))) or a == b)
    with pytest.raises(Unauthorized):
        password_access("right")(Request("GET", "/", Params(), {"authorization": basic(b"ann:wrong")}))
    assert compared == [(b"wrong", b"right")]


# -- hosts


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("shop.example", True),
        ("Shop.Example:8080", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("shop.example.evil.example", False),
        ("evil.example", False),
        ("", False),
        ("[", False),
        ("127.0.0.1", False),
    ],
)
def test_only_hosts_of_the_list_are_answered(app: Celery, host: str, is_ours: bool) -> None:
    user = user_of(app, hosts=["SHOP.example", "::1"])
    for path in ("/", "/web.css", ""):
        answer = user.get(path, Host=host)
        assert answer.status == ((303 if not path else 200) if is_ours else 421)
    assert user.act("/waiting", "cancel", id="a").status == 421


def test_without_a_list_any_host_is_answered(app: Celery) -> None:
    user = User(user_of(app).application, Host="anything.example")
    assert user.get("/").status == 200

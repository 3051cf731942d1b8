"""What others wrote is shown, never obeyed: every page of a hostile broker, and what every answer must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.queue import dead_letter
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.web.pages import PAGES
from examples.private_redis import PrivateRedis
from tests.state import bury, give, lease
from tests.web import filling, hostile
from tests.web.direct import Answer, User, shop, user_of
from tests.web.hostile import Hostile, fill_hostile

_ELEMENTS = """
html head meta title link script body a header svg circle path nav main h1 h2 p div footer span button form input label
ul li code strong fieldset legend section dl dt dd small table thead tbody tr th td em details summary select option
datalist pre figure figcaption line text rect ol time br wbr progress textarea
"""

#: All elements that the templates have.
ELEMENTS = frozenset(_ELEMENTS.split())

#: The longest answer, in bytes, without compression.
MOST_BYTES = 1_000_000


@pytest.fixture(scope="module")
def hostile_app(redis_server: PrivateRedis) -> Iterator[tuple[Celery, Hostile]]:
    """The shop's app, on a broker full of what somebody put there to harm."""
    with shop(redis_server) as app, redis_server.client() as client:
        filled = fill_hostile(app, client, large=False)
        queue, consumer = DelayedQueue(client, "celery"), f"{hostile.TEXTS['script']}:4711:x"
        lease(queue, consumer)
        give(queue, consumer, b"x")
        bury(client, hostile.TEXTS["script"], dead_letter.pack(b"x", reason="x"))
        DelayedQueue(client, "q" * 100_000).offer(b"x", countdown=60, message_id="of a long queue")
        yield app, filled


@pytest.fixture
def user(hostile_app: tuple[Celery, Hostile]) -> User:
    return user_of(hostile_app[0])


def is_plain(text: str) -> bool:
    """Whether a text has no control characters, also none for bidirectional text, nothing else that hides."""
    return all(char.isprintable() or char == "\n" for char in text)


def check_safe(answer: Answer) -> None:
    """Check what must hold for each answer, whatever is in the broker."""
    check_headers(answer)
    assert len(answer.text) <= MOST_BYTES
    page = answer.page
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert name != "style"
            assert not name.startswith("on"), (tag, attributes)
            # Values of fields are exact: what a form sends must be what was meant. No other attribute hides anything.
            assert name == "value" or is_plain(value or ""), (tag, name, value)
        if tag == "script":
            assert attributes.keys() == {"src", "defer"}
    for tag, text in page.texts:
        assert tag == "textarea" or is_plain(text), (tag, text)
        assert tag != "script" or not text
    assert "style" not in {tag for tag, _ in page.elements}
    for url in page.values("href", "src", "action"):
        check_url(url)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def check_headers(answer: Answer) -> None:
    headers = answer.headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src", "form-action")} == {"'self'"}
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["vary"] == "Accept-Encoding, Accept-Language, Cookie"
    assert "cache-control" in headers
    for name, value in headers.items():
        assert is_plain(value), name
        assert "\n" not in value


def check_url(url: str) -> None:
    """A URL is relative, and of one level."""
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc) == ("", ""), url
    assert re.fullmatch(r"(\./|[a-z]*(\.[a-z]+)?)", parts.path), url
    assert parts.query.isascii()
    assert is_plain(url)


def links(answer: Answer) -> set[str]:
    return {url for url in answer.page.values("href") if not url.startswith(("#", "web.", "favicon"))}


@pytest.mark.parametrize(("language", "most"), [("en", 12), ("zh", 3)])
def test_each_page_that_a_link_leads_to_is_safe(hostile_app: tuple[Celery, Hostile], language: str, most: int) -> None:
    user = User(user_of(hostile_app[0]).application, Cookie=f"delayq_language={language}")
    todo, seen = ["./", "dead?" + urlencode({"queue": "celery"})], set()
    while todo:
        url = todo.pop()
        path, _, query = url.partition("#")[0].partition("?")
        if (path, query) in seen or "lang=" in query:
            continue
        seen.add((path, query))
        if path == "." or path == "./":
            path = ""
        if len([one for one in seen if one[0] == path or (path == "" and one[0] == "./")]) > most:
            continue  # the bars of charts
        answer = user.get(f"/{path}", query)
        assert answer.status in ((200, 404) if path == "task" else (200,)), (url, answer.text)  # ids are only headers
        check_safe(answer)
        todo.extend(links(answer))
    assert {path for path, _ in seen} >= {page.path.lstrip("/") or "./" for page in PAGES}


def test_each_waiting_task_is_shown_and_can_be_cancelled(hostile_app: tuple[Celery, Hostile], user: User) -> None:
    ids = hostile_app[1].waiting
    boxes: set[tuple[str, str]] = set()
    url = "waiting?" + urlencode({"queue": "celery"})
    while url:
        path, _, query = url.partition("?")
        answer = user.get(f"/{path}", query)
        boxes |= {box for box in answer.page.form("cancel").boxes if box[0] == "id"}
        url = next((one["href"] or "" for _, one in answer.page.elements if one.get("rel") == "next"), "")
    from celery_delayq.web.pages.filters import LONGEST_ID, id_key

    short = {what: task_id for what, task_id in ids.items() if 0 < len(task_id) <= LONGEST_ID}
    assert {key for _, key in boxes} >= {id_key(task_id) for task_id in short.values()}
    for task_id in ids.values():
        shown = user.get("/task", {"id": task_id.encode("utf-8", "surrogatepass")})
        assert shown.status == 200
        check_safe(shown)
        for action in ("reschedule", "run_now"):
            if len(task_id) <= LONGEST_ID:
                check_safe(user.submit(shown, action))


def test_what_a_question_names_is_what_is_done(app_of_one: tuple[Celery, User, redis.Redis]) -> None:
    app, user, client = app_of_one
    _, raw = filling.message_of(app, client, "shop.orders.remind", 1)
    message = json.loads(raw)
    texts = {**hostile.TEXTS, "surrogate": hostile.SURROGATE, "wide": "\U0001f469" * 500, "percents": "%25" * 160}
    ids = {what: text for what, text in texts.items() if len(text) <= 500}
    queue = DelayedQueue(client, "celery")
    for task_id in ids.values():
        queue.offer(hostile.hostile_message(message, "shop.x", task_id), countdown=3600, message_id=task_id)
    listed = user.get("/waiting")
    question = user.submit(listed, "cancel", lambda form: [box for box in form.boxes if box[0] == "id"])
    check_safe(question)
    assert question.title == f"Cancel {len(ids)} tasks"
    done = user.submit(question, "cancel")
    check_safe(done)
    assert f"{len(ids)} tasks cancelled." in done.page.text
    assert not any(queue.find(task_id) for task_id in ids.values())


@pytest.fixture(scope="module")
def other_server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def app_of_one(other_server: PrivateRedis) -> Iterator[tuple[Celery, User, redis.Redis]]:
    """An empty broker."""
    with shop(other_server) as app, other_server.client() as client:
        yield app, user_of(app), client


def test_a_task_of_10_mb_is_shown(app_of_one: tuple[Celery, User, redis.Redis]) -> None:
    app, user, client = app_of_one
    _, raw = filling.message_of(app, client, "shop.orders.remind", 1)
    message = json.loads(raw)
    message["headers"] |= {"id": "large", "argsrepr": "x<b>" * 2_500_000}
    message["headers"] |= {"nested": ["y<b>" * 10_000], "z<b>" * 10_000: 1, "task": "t<b>" * 10_000}
    payload = json.dumps(message).encode()
    DelayedQueue(client, "celery").offer(payload, countdown=60, message_id="large")
    letter = dead_letter.pack(b"x" * 1_000_000, reason="r<b>" * 10_000, error="e<b>" * 10_000)
    bury(client, "celery", letter)
    for path, query in (("/waiting", {}), ("/task", {"id": "large"}), ("/dead", {"queue": "celery"})):
        answer = user.get(path, query)
        assert answer.status == 200
        check_safe(answer)
        assert len(answer.text) < 50_000
    check_safe(user.post("/waiting", {"action": "cancel", "id": "large"}))


def test_bulk_steps_keep_a_long_cursor(app_of_one: tuple[Celery, User, redis.Redis]) -> None:
    _, user, client = app_of_one
    queue = DelayedQueue(client, "q" * 3000)
    for number in range(1100):
        queue.offer(b"x", countdown=3600, message_id=str(number))
    question = user.post("/waiting", {"action": "cancel", "scope": "matching"})
    progress = user.submit(question, "cancel")
    assert len(dict(progress.page.form("cancel").fields)["cursor"]) > 2000
    assert "1,100 tasks cancelled." in user.submit(progress, "cancel").page.text
    assert client.zcard(queue.keys.timeout_set) == 0


HOSTILE = [*hostile.TEXTS.values(), "x" * 200_000]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:30]))
def test_what_a_request_has_is_shown_safely(app_of_one: tuple[Celery, User, redis.Redis], text: str) -> None:
    _, user, _ = app_of_one
    names = ("id", "queue", "letter", "name", "task", "text", "due_after", "cursor", "span", "from", "hours", "lang")
    for page in PAGES:
        for query in (dict.fromkeys(names, text), {"queue": text}, {"name": text}):
            answer = user.get(page.path, query)
            assert answer.status in (200, 400, 404)
            check_headers(answer)
            if len(text) < 100_000:
                check_safe(answer)
            else:
                # A URL of this length comes through no server.
                assert len(answer.text) < 4 * len(answer.url) + MOST_BYTES
        for action in page.actions:
            fields = dict.fromkeys((*names, "when", "args", "kwargs", "options", "timing"), text)
            answer = user.post(page.path, {**fields, "action": action}, {"name": text, "queue": text})
            assert answer.status in (200, 400, 404, 413), answer.text
            check_headers(answer)
            if len(text) < 100_000:
                check_safe(answer)
    check_safe(user.get(f"/{text}"))
    check_safe(user.get("/", Cookie=f"delayq_language={text}", Accept_Language=text, Host=text, If_None_Match=text))


@pytest.mark.parametrize("text", ["%ff", "%ed%a0%80"])
def test_names_that_are_not_utf8_are_refused(app_of_one: tuple[Celery, User, redis.Redis], text: str) -> None:
    _, user, _ = app_of_one
    for page in PAGES:
        for query in (f"queue={text}&letter=x&id=x&name={text}", f"queue=celery&letter={text}&id={text}"):
            assert user.get(page.path, query).status in (200, 400, 404)
            for action in page.actions:
                fields = {name: unquote_to_bytes(text) for name in ("name", "task", "when", "queue", "letter", "id")}
                assert user.post(page.path, {**fields, "action": action}, query).status in (200, 400, 404)


def test_every_answer_has_the_headers(user: User) -> None:
    tag = user.get("/periodic").headers["etag"]
    answers = [
        user.get("/web.css"),
        user.get("/web.js"),
        user.get("/favicon.svg"),
        user.get("/periodic", If_None_Match=tag),
        user.get(""),
        user.get("/", "lang=zh"),
        user.get("/nowhere"),
        user.ask("TRACE", "/"),
        user.post("/", b"x" * 2_000_000),
        user.ask("HEAD", "/"),
        user.act("/waiting", "nonsense"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200, 304, 303, 303, 404, 405, 413, 200, 400]
    for answer in answers:
        check_headers(answer)


@pytest.mark.parametrize(
    "payload",
    [
        {"headers": {"id": "x", "task": "t", "retries": "many", "expires": "0001-01-01T00:00:00+14:00"}},
        {"headers": {"id": "x", "task": "t", "retries": 10**400, "expires": "9999-12-31T23:59:59-14:00"}},
        {"headers": {"id": "x", "task": "t", "eta": 1e999, "timelimit": [[[]]], "argsrepr": {"a": [float("nan")]}}},
        {"headers": {"id": "x", "task": "t", **{f"h{number}": number for number in range(5000)}}},
        {"headers": {"id": "x", "task": "t"}, "properties": {"priority": 10**400}},
        {"headers": {"id": "x", "task": "t"}, "body": "[" * 9000 + "]" * 9000, "content-type": "application/json"},
        {"headers": {"id": "x", "task": "t", "deep": json.loads("[" * 900 + "]" * 900)}},
        {"headers": {"id": "x", "task": "t", "stamps": 7, "stamped_headers": {}}, "content-type": ["a"]},
    ],
    ids=range(8),
)
def test_odd_messages_are_shown(app_of_one: tuple[Celery, User, redis.Redis], payload: dict[str, object]) -> None:
    _, user, client = app_of_one
    raw = json.dumps({"properties": {}, "body": "e30=", **payload}).encode()
    DelayedQueue(client, "celery").offer(raw, countdown=60, message_id="x")
    (letter_id,) = bury(client, "celery", dead_letter.pack(raw, reason="x"))
    client.zadd(QueueKeys.of("celery").dead, {letter_id: -1e20})
    for path, query in (("/waiting", {}), ("/task", {"id": "x"}), ("/dead", {"queue": "celery"})):
        answer = user.get(path, query)
        assert answer.status == 200, answer.text
        check_safe(answer)
    (letter,) = (url for url in links(user.get("/dead")) if url.startswith("letter?"))
    answer = user.get("/letter", letter.partition("?")[2])
    assert answer.status == 200, answer.text
    check_safe(answer)

"""Few reads for many tabs, and what happens while Redis is away, hangs, or is a replica."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.web import live
from celery_delayq.web.live import LiveCache
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.support import in_a_child, wait_until
from tests.web import direct
from tests.web.direct import User, shop, user_of
from tests.web.shop import make_app

app, client = direct.app, direct.client

LIVE = {"X-Delayq-Live": "1"}


# -- what browsers keep


def test_a_page_that_has_not_changed_is_not_sent_again(app: Celery) -> None:
    user = user_of(app)
    for path in ("/periodic", "/web.css"):
        first = user.get(path)
        tag = first.headers["etag"]
        for given in (tag, f'"other", {tag}', f'{tag},W/"x"'):
            again = user.get(path, If_None_Match=given)
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
            assert "content-length" not in again.headers
        for given in ("", '"other"', tag[2:], tag.replace("W/", "w/")):
            assert user.get(path, If_None_Match=given).status == 200
    page = user.get("/periodic").headers["etag"]
    app.delayq.schedule.add("new", "shop.carts.tidy", 60.0)
    assert user.get("/periodic", If_None_Match=page).status == 200
    assert "etag" not in user.get("/nowhere").headers
    assert "etag" not in user.act("/waiting", "cancel", id="a").headers


@pytest.mark.parametrize(
    ("accepted", "is_short"),
    [
        ("gzip", True),
        ("br, GZIP", True),
        ("gzip;q=0.5, *", True),
        ("deflate,gzip ; q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("", False),
        ("br", False),
        ("x-gzipped", False),
    ],
)
def test_answers_are_compressed_for_who_takes_it(app: Celery, accepted: str, is_short: bool) -> None:
    user = user_of(app)
    answer, whole = user.get("/periodic", Accept_Encoding=accepted), user.get("/periodic")
    assert answer.headers.get("content-encoding") == ("gzip" if is_short else None)
    assert answer.text == whole.text
    assert answer.headers["etag"] == whole.headers["etag"]
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert (len(answer.body) < len(whole.body)) == is_short
    head = user.ask("HEAD", "/periodic", "", b"", {"Accept-Encoding": accepted})
    assert head.headers == answer.headers
    assert "content-encoding" not in user.get("/favicon.svg", Accept_Encoding=accepted).headers or is_short


def test_only_files_are_kept_without_asking(app: Celery) -> None:
    user = user_of(app)
    assert user.get("/").headers["cache-control"] == "private, no-cache"
    assert user.get("/web.js").headers["cache-control"] == "max-age=3600"


def test_the_first_load_is_light(app: Celery) -> None:
    app.tasks["shop.orders.remind"].apply_async((1,), countdown=60)
    user = user_of(app)
    answers = [user.get(path, Accept_Encoding="gzip") for path in ("/", "/web.css", "/web.js", "/favicon.svg")]
    assert sum(len(answer.body) for answer in answers) <= 40_000


# -- one answer for all tabs


def commands(client: redis.Redis) -> int:
    """Return how many commands the server has got, without those of the tests."""
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]
    return sum(
        each["calls"] for name, each in stats.items() if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    )


def test_ten_tabs_cost_as_much_as_one(app: Celery, client: redis.Redis) -> None:
    user = user_of(app)
    for path in ("/", "/waiting", "/workers", "/periodic"):
        user.get(path)  # connects
        client.config_resetstat()
        user.get(path)
        of_one = commands(client)
        assert of_one > 0
        client.config_resetstat()
        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(lambda to: user.get(to, **LIVE), [path] * 10))
        assert len({answer.text for answer in answers}) == 1
        assert 0 < commands(client) <= of_one + 5  # a connection more


def test_an_action_is_seen_at_once(app: Celery) -> None:
    user = user_of(app)
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
    assert "1 task waits." in user.get("/waiting", **LIVE).page.text
    app.tasks["shop.orders.remind"].apply_async((1,), task_id="b", countdown=3600)
    assert "1 task waits." in user.get("/waiting", **LIVE).page.text  # of the cache
    assert "2 tasks wait." in user.get("/waiting").page.text
    user.act("/waiting", "cancel", id="a")
    user.act("/waiting", "cancel", id="b")
    assert "0 tasks wait." in user.get("/waiting", **LIVE).page.text


def test_answers_are_shared_only_by_those_who_see_the_same(app: Celery) -> None:
    access = {"now": "all"}
    user = user_of(app, lambda request: access["now"])
    assert "schedule.add" in user.get("/periodic", **LIVE).text
    access["now"] = "read"
    assert "schedule.add" not in user.get("/periodic", **LIVE).text
    access["now"] = None  # type: ignore[assignment]
    assert user.get("/periodic", **LIVE).status == 403
    access["now"] = "read"
    assert 'lang="zh"' in user.get("/periodic", Cookie="delayq_language=zh", **LIVE).text.partition("<head>")[0]
    assert user.get("/waiting", "text=a", **LIVE).text != user.get("/waiting", "text=b", **LIVE).text


def test_of_many_threads_one_makes_the_answer() -> None:
    cache: LiveCache[int] = LiveCache(60)
    made: list[int] = []
    may_end, begun = threading.Event(), threading.Event()

    def make() -> int:
        made.append(1)
        begun.set()
        assert may_end.wait(30)
        return len(made)

    with ThreadPoolExecutor(10) as threads:
        answers = [threads.submit(cache.get, "key", make) for _ in range(10)]
        assert begun.wait(30)
        may_end.set()
        assert {answer.result() for answer in answers} == {1}
    cache.clear()
    assert cache.get("key", make) == 2
    assert cache.get("other", make) == 3


def test_who_waits_for_a_failure_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Counts how many have looked: each on asking, and one more before it tries."""

        looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            return time.monotonic()

    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    cache: LiveCache[int] = LiveCache(60)
    tried: list[int] = []
    may_end, begun = threading.Event(), threading.Event()

    def fail() -> int:
        tried.append(1)
        begun.set()
        assert may_end.wait(30)
        raise OSError("away")

    def ask() -> str:
        with pytest.raises(OSError, match="away"):
            cache.get("key", fail)
        return "failed"

    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(ask) for _ in range(6)]
        assert begun.wait(30)
        wait_until(lambda: clock.looks == 7, "all have asked")
        may_end.set()
        assert [answer.result() for answer in answers] == ["failed"] * 6
    assert len(tried) == 1
    assert cache.get("key", lambda: 7) == 7


def test_few_answers_are_kept() -> None:
    cache: LiveCache[int] = LiveCache(60)
    for number in range(1000):
        cache.get(number, lambda: 0)
    assert [cache.get(number, lambda: 1) for number in range(900, 1000)] == [0] * 100
    assert [cache.get(number, lambda: 1) for number in (899, 0)] == [1, 1]


# -- Redis


PATHS = ("/", "/waiting", "/task?id=a", "/dead?queue=celery", "/letter?queue=celery&letter=0", "/periodic")
PATHS = (*PATHS, "/entry?name=a", "/workers")


def get(user: User, url: str, **headers: str) -> direct.Answer:
    path, _, query = url.partition("?")
    return user.get(path, query, **headers)


@pytest.fixture
def own_server() -> Iterator[PrivateRedis]:
    """A server that may be ended."""
    with PrivateRedis("--repl-diskless-sync-delay", "0") as server:
        yield server


def test_redis_away_is_said_and_forgotten_when_it_is_back(own_server: PrivateRedis) -> None:
    url = f"delayq://ann:s3cret@127.0.0.1:{own_server.port}/0"
    with own_server.client() as client:
        client.acl_setuser("ann", enabled=True, passwords=["+s3cret"], keys="*", channels="*", commands=["+@all"])
    app = make_app(url, own_server.url)
    user = user_of(app)
    assert {get(user, path).status for path in PATHS} == {200, 404}
    own_server.stop()
    for path in PATHS:
        answer = get(user, path)
        assert answer.status == 503
        assert f"delayq://ann:**@127.0.0.1:{own_server.port}/0: " in answer.page.text
        assert "s3cret" not in answer.text
        assert get(user, path, **LIVE).status == 503
    for action in ("cancel", "run_now"):
        assert user.act("/waiting", action, id="a").status == 503
    assert user.act("/entry", "schedule.run_now", {"name": "a"}).status == 503
    own_server.start()
    with own_server.client() as client:
        client.acl_setuser("ann", enabled=True, passwords=["+s3cret"], keys="*", channels="*", commands=["+@all"])
    assert {get(user, path, **LIVE).status for path in PATHS} == {200, 404}
    own_server.kill()
    own_server.start()
    with own_server.client() as client:
        client.acl_setuser("ann", enabled=True, passwords=["+s3cret"], keys="*", channels="*", commands=["+@all"])
    assert {get(user, path, **LIVE).status for path in PATHS} == {200, 404}
    app.close()


@contextmanager
def hanging(server: PrivateRedis) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.thorough
def test_a_server_that_hangs_holds_nobody_for_long(own_server: PrivateRedis) -> None:
    with shop(own_server) as app:
        for number in range(5):
            app.tasks["shop.orders.remind"].apply_async((1,), countdown=60, queue=f"q{number}")
        users = [user_of(app) for _ in range(2)]
        assert get(users[0], "/").status == 200  # one user has a connection, one has none

        def status(what: Callable[[], direct.Answer]) -> tuple[int, float]:
            begun = time.monotonic()
            return what().status, time.monotonic() - begun

        asked: list[Callable[[], direct.Answer]] = [
            lambda: get(users[0], "/"),
            lambda: get(users[1], "/waiting"),
            lambda: get(users[1], "/periodic"),
            lambda: users[1].act("/waiting", "cancel", id="a"),
            *[lambda: get(users[0], "/workers", **LIVE)] * 4,
        ]
        with hanging(own_server), ThreadPoolExecutor(len(asked)) as threads:
            found = list(threads.map(status, asked))
        assert {code for code, _ in found} == {503}
        assert max(took for _, took in found) < 8  # six, and a machine with much else to do
        wait_until(lambda: get(users[0], "/").status == 200, "the page tries again")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:1/0", "delayq"),
        ("delayq://:s3cret@127.0.0.1:1/nonsense", "broker"),
        ("nonsense://127.0.0.1", "broker"),
        ("delayq://:s3cret@127.0.0.1:1/0", "delayq://:**@127.0.0.1:1/0: "),
        ("delayq://nowhere.invalid/0", "nowhere.invalid"),
    ],
)
def test_a_wrong_url_is_said(url: str, words: str) -> None:
    app = make_app(url, "redis://127.0.0.1:1/0")
    for answer in (user_of(app).get("/"), user_of(app).act("/waiting", "cancel", id="a")):
        assert answer.status == 503
        assert words in answer.page.text
        assert "s3cret" not in answer.text
    app.close()


def connections(client: redis.Redis) -> int:
    return len(client.client_list()) - 1


def test_connections_are_kept_and_few(own_server: PrivateRedis) -> None:
    with shop(own_server) as app, own_server.client() as client:
        user = user_of(app)
        own = connections(client)
        for _ in range(30):
            user.get("/waiting")
            user.get("/waiting", "cursor=nonsense")  # an error in the middle
            user.get("/periodic")
        assert connections(client) - own <= 2
        with ThreadPoolExecutor(20) as threads:
            assert {answer.status for answer in threads.map(lambda _: user.get("/waiting"), range(100))} == {200}
        wait_until(lambda: connections(client) - own <= 8 * 2, "the other connections to be closed")


def test_it_works_after_a_fork(app: Celery) -> None:
    user = user_of(app)
    assert user.get("/").status == 200
    assert user.get("/", **LIVE).status == 200
    assert in_a_child(lambda: {get(user, path).status for path in PATHS} == {200, 404})
    assert user.get("/").status == 200


def test_a_replica_shows_all_and_changes_nothing(own_server: PrivateRedis) -> None:
    with shop(own_server) as app, PrivateRedis("--replicaof", "127.0.0.1", str(own_server.port)) as replica:
        app.tasks["shop.orders.remind"].apply_async((1,), task_id="a", countdown=3600)
        app.delayq.schedule.add("a", "shop.carts.tidy", 60.0)
        with replica.client() as client, own_server.client() as master:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica")
            written = master.info("replication")["master_repl_offset"]
            wait_until(lambda: client.info("replication")["slave_repl_offset"] >= written, "the replica has it all")
        at_replica = make_app(brokers.url_of(replica), own_server.url)
        user = user_of(at_replica)
        for path in PATHS:
            assert get(user, path).status in (200, 404)
        assert user.get("/task", {"id": "a"}).status == 200
        changes = [user.act("/waiting", "cancel", id="a"), user.act("/waiting", "run_now", scope="matching")]
        changes += [user.act("/entry", action, {"name": "a"}) for action in ("schedule.run_now", "schedule.pause")]
        changes += [user.act("/entry", "schedule.remove", {"name": "a"})]
        for answer in changes:
            assert answer.status == 503, answer.text
            assert "replica" in answer.page.text
        assert user_of(app).get("/task", {"id": "a"}).status == 200
        at_replica.close()

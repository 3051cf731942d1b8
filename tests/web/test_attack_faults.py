"""The page on a bad day: servers that hang, refuse or are away. What it says must be true, and it must stay usable."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from celery import Celery
from kombu import pools

from celery_delayq import DeadLetters
from celery_delayq.queue import dead_letter
from examples.private_redis import PrivateRedis
from tests import state
from tests.redis_cluster import servers
from tests.support import wait_until
from tests.web import direct
from tests.web.direct import OWN, Answer, User, user_of
from tests.web.filling import message_of
from tests.web.shop import make_app

app, client, user = direct.app, direct.client, direct.user

REMIND = "shop.orders.remind"

#: How long a request waits for a server at most, in seconds; see `Broker`.
WAITS_S = 3.0


@pytest.fixture
def hanging() -> Iterator[PrivateRedis]:
    """A server that a test may suspend."""
    with PrivateRedis() as server:
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.thorough
def test_a_server_that_hangs_holds_up_the_first_requests_only(hanging: PrivateRedis) -> None:
    with direct.shop(hanging) as app, ThreadPoolExecutor(4) as threads:
        user = user_of(app)
        assert user.get("/").status == 200
        os.kill(hanging.pid, signal.SIGSTOP)
        begun = time.monotonic()
        answers = list(threads.map(lambda number: user.get("/waiting", {"text": number}), range(20)))
        took_s = time.monotonic() - begun
        assert [answer.status for answer in answers] == [503] * 20
        # In turns of four, each would wait for 3 s twice, 30 s in all.
        assert took_s < 4 * WAITS_S
        os.kill(hanging.pid, signal.SIGCONT)
        wait_until(lambda: user.get("/waiting").status == 200, "the page is back")
        assert user.get("/periodic").status == 200


def test_a_command_that_is_refused_does_not_stop_other_requests(redis_server: PrivateRedis) -> None:
    with direct.shop(redis_server) as app, redis_server.client() as client:
        app.tasks[REMIND].apply_async((1,), task_id="a", countdown=3600)
        user = user_of(app)
        with state.out_of_memory(client):
            form = {"action": "schedule.add", "confirmed": "yes", "name": "n", "task": "t", "when": "60s"}
            refused = user.post("/periodic", form, **OWN)
            seen, cancelled = user.get("/waiting"), user.post(*confirmed("cancel", id="a"), **OWN)
        assert (refused.status, seen.status, cancelled.status) == (503, 200, 200)
        assert "1 task cancelled." in cancelled.page.text


def test_a_change_that_is_broken_off_does_not_say_that_it_is_tried_again(
    app: Celery, user: User, client: redis.Redis
) -> None:
    app.delayq.schedule.add("n", "shop.carts.tidy", 60.0)
    with state.out_of_memory(client):
        answer = user.post("/entry", {"action": "schedule.pause"}, {"name": "n"}, **OWN)
    assert answer.status == 503
    assert answer.title == "The change was broken off"
    assert "tries again" not in answer.page.text
    assert not is_live(answer)


def test_a_page_that_cannot_be_read_tries_again() -> None:
    with PrivateRedis() as server, direct.shop(server) as app:
        user = user_of(app)
        server.kill()
        answer = user.get("/waiting")
    assert answer.status == 503
    assert "tries again" in answer.page.text
    assert is_live(answer)


@pytest.mark.parametrize(
    "wrong", [{"args": [1, 2, 3]}, {"kwargs": {"": 1}}, {"options": {"queue": ["a"]}}, {"options": {"expires": []}}]
)
def test_a_periodic_task_that_cannot_be_sent_is_a_mistake_of_its_fields(
    app: Celery, user: User, wrong: dict[str, object]
) -> None:
    app.delayq.schedule.add("n", "shop.carts.tidy", 60.0, **wrong)
    answer = user.post("/entry", {"action": "schedule.run_now", "confirmed": "yes"}, {"name": "n"}, **OWN)
    assert answer.status == 400
    assert "Celery cannot send it" in answer.page.text


def test_queues_on_nodes_that_answer_are_shown_and_changed() -> None:
    with servers.cluster() as cluster:
        app = make_app(cluster.url(3), "rpc://")
        try:
            queues = [f"q{number}" for number in range(6)]
            away = [queue for queue in queues if cluster.owner(queue) is cluster.owner("q0")]
            there = [queue for queue in queues if queue not in away]
            for queue in queues:
                app.tasks[REMIND].apply_async((1,), task_id=queue, countdown=3600, queue=queue)
            user = user_of(app)
            assert user.get("/").status == 200
            cluster.owner("q0").kill()
            for path in ("/", "/waiting", "/dead", "/workers"):
                assert "This is not complete" in user.get(path).page.text, path
            for path in ("/waiting", "/dead"):
                answer = user.get(path, {"queue": "q0"})
                assert answer.status == 200
                assert "This is not complete" in answer.page.text
                assert "Nothing was given up" not in answer.page.text
            assert "1 task cancelled." in user.post(*confirmed("cancel", id=there[0]), **OWN).page.text
            assert user.post(*confirmed("cancel", id="q0"), **OWN).status == 503
        finally:
            app.close()
            pools.reset()


def test_letters_that_others_have_deleted_cost_no_search(app: Celery, user: User, client: redis.Redis) -> None:
    letters = DeadLetters(client, "celery")
    _, raw = message_of(app, client, REMIND, 1)
    packed = [dead_letter.pack(raw, reason=dead_letter.INVALID_TASK, error="x") for number in range(5000)]
    kept = state.bury(client, "celery", *packed)[10]
    user.get("/dead", {"queue": "celery"})
    client.execute_command("CONFIG", "RESETSTAT")
    ids = [*(f"{number:016x}" for number in range(50)), kept]
    fields = [*(("letter", letter_id) for letter_id in ids), ("action", "dead.purge"), ("confirmed", "yes")]
    answer = user.post("/dead", fields, {"queue": "celery"}, **OWN)
    assert "1 dead letter deleted." in answer.page.text
    assert "50 were gone" in answer.page.text
    assert len(letters) == 4999
    stats = client.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] <= 2, "the letter, and then the page"
    assert stats["cmdstat_zrange"]["calls"] < 20


def confirmed(action: str, **fields: str) -> tuple[str, dict[str, str]]:
    return "/waiting", {"action": action, "confirmed": "yes", **fields}


def is_live(answer: Answer) -> bool:
    return any(tag == "body" and "data-live" in attributes for tag, attributes in answer.page.elements)

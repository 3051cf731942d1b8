"""Results, groups and chords on a real Redis Cluster. No command of theirs may go to the wrong node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TimeoutError
from celery.result import AsyncResult, GroupResult

from examples.private_redis import PrivateRedis
from tests import brokers
from tests.brokers import ClusterServer
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker


@pytest.fixture(scope="module")
def here(whole_cluster: Cluster) -> Cluster:
    """The session's cluster, empty at the start of this module."""
    return brokers.emptied(whole_cluster).cluster


@pytest.fixture(scope="module")
def app(here: Cluster, redis_server: PrivateRedis) -> Iterator[Any]:
    """An app whose worker runs for the whole module."""
    ledger = f"redis://127.0.0.1:{redis_server.port}/9"
    conf = {"result_backend": here.url(), "result_extended": True}
    with (
        publisher(here.url(), ledger, **conf) as app,
        Worker(pool="threads", concurrency=4, broker=here.url(), ledger=ledger, conf=conf) as worker,
    ):
        yield app
        assert "MOVED" not in worker.log


@pytest.fixture(autouse=True)
def all_at_home(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a command went to the wrong node."""
    if "app" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("app")
    with ClusterServer(request.getfixturevalue("here")).nothing_astray():
        yield


def keys(cluster: Cluster, part: str) -> dict[str, servers.ClusterNode]:
    """Return the keys that contain some text, and where they are."""
    return {key.decode(): node for node in cluster.nodes for key in node.client.scan_iter(f"*{part}*", count=1000)}


def test_a_chord_of_many(app: Any) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    result = chord((add.s(number, 1) for number in range(120)), total.s()).apply_async()
    assert result.get(timeout=60) == sum(range(1, 121))


def test_chords_in_chords_and_groups_in_chords(app: Any) -> None:
    add, total = app.tasks["add"], app.tasks["total"]

    def inner(first: int) -> Any:
        return chord([add.s(first, 1), add.s(first, 2)], total.s())

    assert chord([inner(1), inner(2), add.s(1, 1)], total.s()).apply_async().get(timeout=60) == 5 + 7 + 2
    in_groups = chord([group(add.s(1, 1), add.s(2, 2)), group(add.s(3, 3))], total.s())
    assert in_groups.apply_async().get(timeout=60) == 12
    assert chain(add.s(1, 1), group(add.s(1), add.s(2)), total.s(), add.s(10)).apply_async().get(timeout=60) == 17


def test_a_chord_with_an_error(app: Any) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    result = chord([add.s(1, 1), add.s("one", 1)], total.s()).apply_async()
    with pytest.raises(ChordError, match="TypeError"):
        AsyncResult(result.id, app=app).get(timeout=60)  # without its parents, whose error would come first
    assert result.state == "FAILURE"


def test_each_result_has_its_own_slot_and_a_chord_one(app: Any, here: Cluster) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    results = [add.delay(number, 1) for number in range(30)]
    assert [result.get(timeout=60) for result in results] == list(range(1, 31))
    places = [node for result in results for key, node in keys(here, result.id).items()]
    assert len(places) == 30
    assert set(places) == set(here.nodes)

    # A part that waits keeps the keys of the chord there.
    late = add.s(1, 1).set(countdown=3600)
    unfinished = chord([add.s(2, 2), add.s(3, 3), late], total.s()).apply_async()
    header = unfinished.parent
    wait_until(lambda: header.completed_count() == 2, "two of three are done", 60)
    assert header.id

    def of_the_chord() -> dict[str, Any]:
        return {key: node for key, node in keys(here, f"{{{header.id}}}").items() if "celery-task-meta" not in key}

    wait_until(lambda: len(of_the_chord()) >= 2, "its parts are counted, after their results were stored", 20)
    assert len(set(of_the_chord().values())) == 1
    header.revoke()


def test_groups_are_saved_and_restored(app: Any, here: Cluster) -> None:
    add = app.tasks["add"]
    result = group(add.s(number, number) for number in range(6)).apply_async()
    result.save()
    assert keys(here, result.id)
    # With Celery 5.6.0, a restored result does not hear of one that another object in the process awaits.
    expected = [0, 2, 4, 6, 8, 10]
    assert result.get(timeout=60) == expected
    restored = GroupResult.restore(result.id, app=app)
    assert restored.join(timeout=60) == expected  # nor does `get` of a restored group ever end
    restored.delete()
    assert GroupResult.restore(result.id, app=app) is None
    assert not keys(here, result.id)
    result.forget()
    assert not any(keys(here, member.id) for member in result.results)


def test_results_are_forgotten_and_expire(app: Any, here: Cluster) -> None:
    first, second = app.tasks["add"].delay(1, 1), app.tasks["add"].delay(2, 2)
    assert (first.get(timeout=60), second.get(timeout=60)) == (2, 4)
    first.forget()
    assert not keys(here, first.id)
    assert AsyncResult(first.id, app=app).state == "PENDING"
    ((key, node),) = keys(here, second.id).items()
    assert 0 < node.client.ttl(key) <= 24 * 3600


def test_a_result_that_does_not_come(app: Any) -> None:
    with pytest.raises(TimeoutError):
        AsyncResult(str(uuid4()), app=app).get(timeout=0.5)

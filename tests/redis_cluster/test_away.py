"""While a node is away, commands and methods tell of the queues of the others, and say what is missing.

Timeouts of connections are so long here that whoever waits for a node that hangs fails the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue
from celery_delayq.cluster import hanging
from celery_delayq.cluster.node import Address
from celery_delayq.inspector import Inspector, history, pages
from celery_delayq.inspector.away import LostQueue, NodesAway
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.bulk import change_some
from celery_delayq.inspector.pages import Criteria, walk
from celery_delayq.queue import measuring
from celery_delayq.queue.keys import QueueKeys
from examples.private_redis import PrivateRedis
from tests.cli.running import Done, TerminalCommand, failed, run
from tests.integration.publishing import publish
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.support import wait_until
from tests.worker_app import publisher

#: Two on each node; `q0` and `q4` are where the registry is.
QUEUES = [f"q{number}" for number in range(6)]

#: Those of the app's configuration, one on each node; the others are known from the registry.
CONFIGURED = QUEUES[:3]

#: On the node of `q1`.
THERE = ["q1", "q5"]
OTHERS = ["q0", "q2", "q3", "q4"]

CONF = {
    "broker_transport_options": {"socket_timeout": 300},
    "task_default_queue": "q0",
    "task_queues": [Queue(name) for name in CONFIGURED],
}

AWAY = ["hangs", "dead"]


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A cluster in which no node is taken for dead by the others."""
    with servers.cluster(settings=("--cluster-node-timeout", "300000")) as cluster:
        yield cluster


@pytest.fixture
def app(own: Cluster, redis_server: PrivateRedis) -> Iterator[Celery]:
    """An app with an empty broker."""
    own.flush()
    with publisher(own.url(3), f"redis://127.0.0.1:{redis_server.port}/9", **CONF) as app:
        yield app


@pytest.fixture
def ids(app: Celery) -> dict[str, str]:
    """The ids of a waiting task of each queue; they are due in the order of the queues."""
    return {queue: publish(app, seconds=number, queue=queue) for number, queue in enumerate(QUEUES)}


@pytest.fixture
def other_app(own: Cluster, app: Celery) -> Iterator[Celery]:
    """The same app in another process: it has published nothing, so it knows only its configured queues."""
    with publisher(own.url(3), app.conf.result_backend, **CONF) as other:
        yield other


@contextmanager
def restored(cluster: Cluster, queue: str) -> Iterator[ClusterNode]:
    """Give the node of a queue, and repair it at the end; if it was killed, it has forgotten everything."""
    node = cluster.owner(queue)
    try:
        yield node
    finally:
        node.resume()
        if not node.is_running:
            node.restart()
        cluster.wait_until_ok()
        hanging.answers(Address("127.0.0.1", node.port))


@contextmanager
def away(cluster: Cluster, queue: str, how: str = "hangs") -> Iterator[ClusterNode]:
    """Let the node of a queue be away while the block lasts."""
    with restored(cluster, queue) as node:
        node.suspend() if how == "hangs" else node.kill()
        yield node


def rows(done: Done) -> dict[str, list[str]]:
    """The cells of each line of a table, by the first."""
    return {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}


def lost(node: ClusterNode, *queues: str) -> str:
    """What is said of lost queues."""
    noun = "queue" if len(queues) == 1 else "queues"
    return f"Redis node {node.address} does not answer, so nothing is known of {noun} {', '.join(map(repr, queues))}"


class TestStatus:
    @pytest.mark.parametrize("how", AWAY)
    def test_tables(self, own: Cluster, app: Celery, ids: dict[str, str], how: str) -> None:
        whole = run(app, "status")
        assert whole.code == 0
        assert rows(whole)["q1"][1:5] == [own.owner("q1").address, "0", "1", "0"]
        assert rows(whole)["all"][2] == "6"
        with away(own, "q1", how) as node:
            done = run(app, "status")
            assert (done.code, done.stderr) == (1, f"Error: this is not complete: {lost(node, *THERE)}\n")
            # How much of "does not answer" is in the line depends on how wide ports and process ids are.
            words = ("does", "not", "answer")
            lost_rows = [[cell for cell in rows(done)[queue][1:] if cell not in words] for queue in ("q1", "q5")]
            assert lost_rows == [[node.address, *["-"] * 8]] * 2
            assert done.stdout.count("answer") == 2
            assert [rows(done)[queue][3] for queue in OTHERS] == ["1"] * 4
            assert rows(done)["all"][:4] == ["all", "others", "0", "4"]

    def test_json(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        (whole,) = run(app, "status", "--json").json()
        assert whole["error"] is None
        assert {row["queue"]: (row["node"], row["error"]) for row in whole["queues"]} == {
            queue: (own.owner(queue).address, None) for queue in QUEUES
        }
        with away(own, "q1") as node:
            done = run(app, "status", "--json", "--span", "1d")
            assert (done.code, done.stderr) == (1, f"Error: this is not complete: {lost(node, *THERE)}\n")
            (found,) = done.lines()
            assert found["error"] == lost(node, *THERE)
            assert [row["queue"] for row in found["queues"]] == QUEUES
            assert found["queues"][1] == {
                "queue": "q1",
                **dict.fromkeys(("ready", "delayed", "overdue", "in_flight", "dead", "failed", "next_due")),
                "punctual": [],
                "paused": None,
                "node": node.address,
                "error": "does not answer",
            }
            assert found["totals"]["delayed"] == found["later"] == 4

    @pytest.mark.parametrize("how", AWAY)
    def test_without_the_registry(self, own: Cluster, other_app: Celery, ids: dict[str, str], how: str) -> None:
        with away(own, "q0", how) as node:
            done = run(other_app, "status")
            assert done.code == 1
            assert f"{lost(node, 'q0')}. It has the names of all delayed queues, so only those of" in done.stderr
            assert rows(done).keys() & set(QUEUES) == set(CONFIGURED)
            assert rows(done)["q2"][1:4] == [own.owner("q2").address, "0", "1"]


class TestTop:
    def test_once(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        with away(own, "q1") as node:
            done = run(app, "top", "--once")
            assert (done.code, done.stderr) == (1, f"Error: this is not complete: {lost(node, *THERE)}\n")
            assert ids["q0"] in done.stdout
            assert ids["q1"] not in done.stdout

    @pytest.mark.parametrize("how", AWAY)
    def test_goes_on(
        self, own: Cluster, app: Celery, ids: dict[str, str], redis_server: PrivateRedis, how: str
    ) -> None:
        conf = {"broker_transport_options": CONF["broker_transport_options"]}
        ledger = f"redis://127.0.0.1:{redis_server.port}/9"
        with TerminalCommand("top", "--interval", "0.1", broker=own.url(3), ledger=ledger, conf=conf) as top:
            top.wait_for_log(ids["q1"])
            with away(own, "q1", how):
                top.wait_for_log("so nothing is known of queue")
                new = publish(app, queue="q2")
                top.wait_for_log(new)
            if how == "dead":  # one that hung is asked again after 10 s at the latest
                back = publish(app, queue="q1")
                top.wait_for_log(back)
            assert "Traceback" not in top.log


class TestList:
    @pytest.mark.parametrize("how", AWAY)
    def test_of_all_queues(self, own: Cluster, app: Celery, ids: dict[str, str], how: str) -> None:
        with away(own, "q1", how) as node:
            done = run(app, "list", "--json")
            assert (done.code, done.stderr) == (1, f"Error: this is not complete: {lost(node, *THERE)}\n")
            assert [task["id"] for task in done.lines()] == [ids[queue] for queue in OTHERS]
            first = run(app, "list", "--json", "--limit", 3, "--task", "note").lines()
            rest = run(app, "list", "--json", "--cursor", first.pop()["cursor"]).lines()
            assert [task["id"] for task in (*first, *rest)] == [ids[queue] for queue in OTHERS]

    def test_of_one_queue(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        with away(own, "q1") as node:
            (task,) = run(app, "list", "--json", "--queue", "q3").json()
            assert task["id"] == ids["q3"]
            failed(run(app, "list", "--queue", "q5"), f"this is not complete: {lost(node, 'q5')}")

    @pytest.mark.parametrize("how", AWAY)
    def test_without_the_registry(self, own: Cluster, other_app: Celery, ids: dict[str, str], how: str) -> None:
        with away(own, "q0", how) as node:
            done = run(other_app, "list", "--json")
            assert done.code == 1
            assert f"{lost(node, 'q0')}. It has the names of all delayed queues" in done.stderr
            assert [task["id"] for task in done.lines()] == [ids["q1"], ids["q2"]]
            (task,) = run(other_app, "list", "--json", "--queue", "q3").json()
            assert task["id"] == ids["q3"]


class TestExport:
    @pytest.mark.parametrize("how", AWAY)
    def test_writes_nothing_that_looks_complete(
        self, own: Cluster, app: Celery, ids: dict[str, str], how: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "tasks.jsonl"
        path.write_text("former")
        with away(own, "q1", how) as node:
            advice = (
                f"{lost(node, *THERE)}. The export would not be complete: run it again when the node or its replica"
            )
            failed(run(app, "export", path, "--yes"), advice, f"-Q {','.join(OTHERS)}")
            failed(run(app, "export", path, "--yes", "-Q", "q1,q2"), lost(node, "q1"), "-Q q2")
            failed(run(app, "export", path, "--yes", "-Q", "q1"), lost(node, "q1"))
            done = run(app, "export", "-")
            failed(done, advice)
            assert done.stdout == ""
        assert [it.name for it in tmp_path.iterdir()] == [path.name]
        assert path.read_text() == "former"

    def test_chosen_queues(self, own: Cluster, app: Celery, ids: dict[str, str], tmp_path: Path) -> None:
        path = tmp_path / "tasks.jsonl"
        with away(own, "q1"):
            assert run(app, "export", path, "-Q", ", ".join(OTHERS), "--json").json() == [{"exported": 4}]
            for queue in OTHERS:
                assert app.delayq.cancel(ids[queue])
            assert run(app, "import", path, "--json").json() == [{"stored": 4, "waiting": 0}]
            assert app.delayq.get(ids["q3"]).queue == "q3"

    def test_without_the_registry(self, own: Cluster, other_app: Celery, ids: dict[str, str], tmp_path: Path) -> None:
        path = tmp_path / "tasks.jsonl"
        with away(own, "q0"):
            failed(run(other_app, "export", path), "It has the names of all delayed queues", "-Q q1,q2")
            assert run(other_app, "export", path, "-Q", "q1,q3", "--json").json() == [{"exported": 2}]


class TestWorkers:
    def test_leases_of_other_queues(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        with app.connection() as connection:
            for queue in ("q0", "q1"):
                leases = {"host:1:random": 4_000_000_000_000}
                connection.default_channel.plain_client.zadd(QueueKeys.of(queue).consumers, leases)
        (whole,) = run(app, "workers", "--json").json()
        assert whole["queues"] == ["q0", "q1"]
        with away(own, "q1") as node:
            done = run(app, "workers", "--json")
            assert (done.code, done.stderr) == (1, f"Error: this is not complete: {lost(node, *THERE)}\n")
            assert [it["queues"] for it in done.lines()] == [["q0"]]


class TestApi:
    def test_what_needs_the_node_is_an_error_that_names_it(
        self, own: Cluster, app: Celery, ids: dict[str, str], tmp_path: Path
    ) -> None:
        calls: list[Callable[[Any], Any]] = [
            lambda delayq: delayq.counts(),
            lambda delayq: delayq.consumers(),
            lambda delayq: delayq.histogram(0, 1, 1),
            lambda delayq: delayq.scheduled(),
            lambda delayq: delayq.scheduled(queue="q5"),
            lambda delayq: delayq.export(tmp_path / "tasks"),
            lambda delayq: delayq.cancel_all(everything=True),
            lambda delayq: delayq.release(),
            lambda delayq: delayq.get("unknown"),
            lambda delayq: delayq.cancel(["unknown"]),
            lambda delayq: delayq.scheduled(state="ready"),
            lambda delayq: delayq.get("unknown", ready=True),
            lambda delayq: delayq.cancel("unknown", ready=True),
            lambda delayq: delayq.cancel_all(everything=True, ready=True),
        ]
        with away(own, "q1") as node:
            for call in calls:
                with pytest.raises(OperationalError, match=f"{node.address} does not answer, so .* 'q5'") as caught:
                    call(app.delayq)
                assert isinstance(caught.value.__cause__, NodesAway)
        assert {task.id for task in app.delayq.scheduled()} == set(ids.values()), "nothing has changed"
        assert not list(tmp_path.iterdir())

    def test_partial_results(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        assert not app.delayq.counts(partial=True).lost
        with away(own, "q1") as node:
            counts = app.delayq.counts(partial=True)
            assert {queue.queue: (queue.node, queue.delayed) for queue in counts.queues} == {
                queue: (own.owner(queue).address, 1) for queue in OTHERS
            }
            there = tuple(LostQueue(queue, node.address, "does not answer") for queue in THERE)
            assert counts.lost.queues == there
            assert app.delayq.consumers(partial=True).lost.queues == there
            histogram = app.delayq.histogram(0, 1, 1, partial=True)
            assert (histogram.after, histogram.lost.queues) == (len(OTHERS), there)
            page = app.delayq.scheduled(partial=True)
            assert [task.id for task in page] == [ids[queue] for queue in OTHERS]
            assert page.lost.queues == there
            page = app.delayq.scheduled(state="ready", partial=True)
            assert (list(page), page.lost.queues) == ([], there)

    def test_a_history_of_the_other_queues(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        with app.connection() as connection:
            lists = BrokerLists(connection.default_channel, QUEUES)
            for queue in QUEUES:
                now_s = lists.now_ms() // 1000
                measuring.count(QueueKeys.of(queue), now_s=now_s, numbers={"transferred": 1}).run(lists.client)
            assert sum(point.transferred for point in history.read(lists, 8).points) == len(QUEUES)
            with away(own, "q1"):
                assert sum(point.transferred for point in history.read(lists, 8).points) == len(OTHERS)

    def test_tasks_of_other_nodes_can_be_changed(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        with away(own, "q1"):
            assert app.delayq.reschedule(ids["q0"], countdown=60)
            assert app.delayq.cancel([ids["q0"], ids["q2"]]) == {ids["q0"]: True, ids["q2"]: True}
            assert app.delayq.cancel_all(queue="q3") == 1

    @pytest.mark.parametrize("how", AWAY)
    def test_ready_tasks_of_other_nodes_can_be_cancelled(self, own: Cluster, app: Celery, how: str) -> None:
        sent = {queue: app.tasks["note"].apply_async(queue=queue).id for queue in QUEUES}
        with away(own, "q1", how):
            assert app.delayq.get(sent["q0"], ready=True).queue == "q0"
            assert app.delayq.cancel([sent["q0"], sent["q2"]], ready=True) == {sent["q0"]: True, sent["q2"]: True}
            assert app.delayq.cancel_all(queue="q3", ready=True) == 1
            chunk = app.delayq.change_some("cancel", everything=True, state="ready")
            assert (chunk.changed, [it.queue for it in chunk.lost.queues]) == (1, THERE)
            chunk = app.delayq.change_some("cancel", queue="q5", state="ready")
            assert (chunk.changed, [it.queue for it in chunk.lost.queues]) == (0, ["q5"])
            with pytest.raises(OperationalError, match="does not answer"):
                app.delayq.cancel(sent["q1"], ready=True)

    @pytest.mark.parametrize(
        ("action", "eta"),
        [("cancel", {}), ("run_now", {}), ("reschedule", {"eta": 5}), ("reschedule", {"eta": 4_000_000_000})],
    )
    def test_chunks_change_the_tasks_of_other_nodes(
        self, own: Cluster, app: Celery, ids: dict[str, str], action: Any, eta: dict[str, int]
    ) -> None:
        with away(own, "q1") as node:
            chunk = app.delayq.change_some(action, everything=True, **eta)
            assert (chunk.changed, chunk.late, chunk.cursor) == (len(OTHERS), 0, None)
            assert chunk.lost.queues == tuple(LostQueue(queue, node.address, "does not answer") for queue in THERE)
        rest = app.delayq.change_some(action, everything=True, **eta)
        assert (rest.changed, rest.lost.queues) == (len(THERE), ())

    def test_and_without_the_registry(self, own: Cluster, other_app: Celery, ids: dict[str, str]) -> None:
        with away(own, "q0") as node:
            assert other_app.delayq.cancel(ids["q2"])
            with pytest.raises(OperationalError, match=f"{node.address} does not answer"):
                other_app.delayq.cancel(ids["q3"])
            assert other_app.delayq.cancel_all(queue="q3") == 1


class TestANodeIsLostInTheMiddle:
    def test_of_a_page(self, own: Cluster, app: Celery, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        found = BrokerLists.waiting

        def waiting(self: BrokerLists, *queues: str, **span: Any) -> Any:
            answer = found(self, *queues, **span)
            node.kill()
            return answer

        with app.connection() as connection:
            inspector = Inspector(connection.default_channel, CONFIGURED)
            monkeypatch.setattr(BrokerLists, "waiting", waiting)
            with restored(own, "q1") as node:
                page = pages.page(inspector.lists, Criteria(), partial=True)
            assert [task.id for task in page] == [ids[queue] for queue in OTHERS]
            assert [queue.queue for queue in page.lost.queues] == THERE

    def test_of_a_chunk(self, own: Cluster, app: Celery, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        remove = DelayedQueue.remove

        def removed(queue: DelayedQueue, entries: Any) -> list[bool]:
            if node.is_running:
                node.kill()
            return remove(queue, entries)

        with app.connection() as connection:
            inspector = Inspector(connection.default_channel, CONFIGURED)
            monkeypatch.setattr(DelayedQueue, "remove", removed)
            with restored(own, "q1") as node:
                chunk = change_some(inspector.lists, "cancel", Criteria())
            assert (chunk.changed, chunk.late) == (len(OTHERS), 0)
            assert [queue.queue for queue in chunk.lost.queues] == THERE

    def test_of_a_walk(self, own: Cluster, app: Celery, ids: dict[str, str]) -> None:
        with app.connection() as connection, restored(own, "q1") as node:
            walking = walk(BrokerLists(connection.default_channel, CONFIGURED), Criteria(("q0", "q1")))
            assert next(walking)[0].queue == "q0"
            node.kill()
            with pytest.raises(NodesAway, match=lost(node, "q1")):
                list(walking)


@pytest.mark.parametrize("how", AWAY)
def test_errors_of_other_commands_name_the_node(own: Cluster, redis_server: PrivateRedis, how: str) -> None:
    conf = {**CONF, "broker_transport_options": {"socket_timeout": 0.5}}
    ledger = f"redis://127.0.0.1:{redis_server.port}/9"
    assert own.owner("delayq:schedule") is own.owner("q1")
    with publisher(own.url(3), ledger, **conf) as app, away(own, "q1", how) as node:
        for command in (
            "dead list q1",
            "dead requeue q1 --all",
            "cancel unknown",
            "cancel --all --yes",
            "schedule list",
            "schedule pause unknown",
            "orphans list",
        ):
            failed(run(app, *command.split()), f"Redis node {node.address}" if how == "hangs" else node.address)


@pytest.mark.thorough
def test_a_cluster_that_serves_nothing_without_all_its_nodes(redis_server: PrivateRedis) -> None:
    """With `cluster-require-full-coverage yes`, which is the default of Redis."""
    settings = ("--cluster-node-timeout", "500", "--cluster-require-full-coverage", "yes")
    ledger = f"redis://127.0.0.1:{redis_server.port}/9"
    with servers.cluster(settings=settings) as cluster, publisher(cluster.url(3), ledger, **CONF) as app:
        publish(app, queue="q1")
        cluster.owner("q1").kill()
        alive = cluster.owner("q2")
        wait_until(lambda: alive.info()["cluster_state"] == "fail", "the cluster is down")
        done = run(app, "status")
        assert done.code == 1
        down = "answers that the cluster is down, so nothing is known of queue"
        assert f"Redis node {alive.address} {down} 'q2'" in done.stderr
        assert rows(done)["q2"][-8:] == ["-"] * 8

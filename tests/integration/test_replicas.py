"""The transport option `replicas`: what a caller was told is done survives the sudden death of the Redis master."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue, DelayqError, NotAllSent, NotReplicated
from tests.pair import Pair, Pairs, replicated, replicated_nodes
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster

HOUR = 3600
LATER = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.fixture(autouse=True)
def nothing_astray() -> None:
    """The cluster is another one than that of all other tests."""


@pytest.fixture(scope="module")
def lasting_pair(broker_kind: str) -> Iterator[Pair | Pairs]:
    """A pair for all tests that do not kill it."""
    with replicated_nodes() if broker_kind == "cluster" else replicated() as pair:
        yield pair


@pytest.fixture
def pair(lasting_pair: Pair | Pairs) -> Pair | Pairs:
    """An empty master and its replica."""
    with lasting_pair.client() as client:
        client.flushall()
        client.script_flush()
        client.config_resetstat()
    lasting_pair.wait_until_it_follows()
    return lasting_pair


@pytest.fixture
def mortal_pair() -> Iterator[Pair]:
    """A pair whose master may be killed."""
    with replicated() as pair:
        yield pair


@contextmanager
def shop(pair: Pair | Pairs, ledger_url: str, **options: Any) -> Iterator[Celery]:
    """An app that waits for one replica."""
    options = {"replicas": 1, "replicas_timeout": 0.3, "socket_timeout": 10, **options}
    with publisher(pair.url, ledger_url, broker_transport_options=options) as app:
        yield app


def delay(app: Celery, task_id: str, countdown: float | None = HOUR) -> None:
    app.tasks["note"].apply_async(task_id=task_id, countdown=countdown, retry=False)


def exported(app: Celery) -> io.StringIO:
    """An export of "other", which then waits no longer."""
    file = io.StringIO()
    app.delayq.export(file)
    app.delayq.cancel("other")
    file.seek(0)
    return file


#: What a caller may do while "waiting" and "other" wait, and an entry "periodic" is there. The first function prepares.
WRITES: dict[str, tuple[Callable[[Celery], Any], Callable[[Celery, Any], object]]] = {
    "a countdown": (lambda app: None, lambda app, _: delay(app, "new")),
    "no countdown": (lambda app: None, lambda app, _: delay(app, "new", None)),
    "cancel": (lambda app: None, lambda app, _: app.delayq.cancel("waiting")),
    "cancel, ready": (
        lambda app: app.delayq.run_now("waiting"),
        lambda app, _: app.delayq.cancel("waiting", ready=True),
    ),
    "reschedule": (lambda app: None, lambda app, _: app.delayq.reschedule("waiting", countdown=2 * HOUR)),
    "run_now": (lambda app: None, lambda app, _: app.delayq.run_now("waiting")),
    "update": (lambda app: None, lambda app, _: app.delayq.update("waiting", args=(1,))),
    "priority": (lambda app: None, lambda app, _: app.delayq.update("waiting", priority=9)),
    "revoke": (lambda app: None, lambda app, _: app.control.revoke("waiting")),
    "cancel_all": (lambda app: None, lambda app, _: app.delayq.cancel_all(everything=True)),
    "release": (lambda app: None, lambda app, _: app.delayq.release()),
    "import": (exported, lambda app, file: app.delayq.import_(file)),
    "add": (lambda app: None, lambda app, _: app.delayq.schedule.add("new", "note", HOUR)),
    "pause": (lambda app: None, lambda app, _: app.delayq.schedule.pause("periodic")),
    "remove": (lambda app: None, lambda app, _: app.delayq.schedule.remove("periodic")),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_waits_until_the_replica_has_it(pair: Pair | Pairs, ledger_url: str, write: str) -> None:
    prepare, act = WRITES[write]
    with shop(pair, ledger_url, replicas_timeout=5.0) as patient:
        delay(patient, "waiting")
        delay(patient, "other")
        patient.delayq.schedule.add("periodic", "note", HOUR)
        prepared = prepare(patient)
    with shop(pair, ledger_url) as app:
        before = pair.written()
        with (
            pair.lagging(),
            pytest.raises(NotReplicated, match="it is stored, but may be lost if the Redis master dies"),
        ):
            act(app, prepared)
        assert pair.written() > before, "it was not even tried"


@pytest.mark.parametrize("write", WRITES)
def test_a_write_succeeds_with_a_replica_that_follows(pair: Pair | Pairs, ledger_url: str, write: str) -> None:
    prepare, act = WRITES[write]
    with shop(pair, ledger_url, replicas_timeout=5.0) as app:
        delay(app, "waiting")
        delay(app, "other")
        app.delayq.schedule.add("periodic", "note", HOUR)
        act(app, prepare(app))


@pytest.mark.one_server("see tests/faults/test_nothing_lost.py")
class TestAnUncleanFailover:
    def test_loses_nothing_that_was_confirmed(self, mortal_pair: Pair, ledger_url: str) -> None:
        with shop(mortal_pair, ledger_url, replicas_timeout=5.0) as app:
            for number in range(20):
                delay(app, f"delayed {number}")
            app.delayq.apply_async_many(app.tasks["note"].s().set(countdown=HOUR) for _ in range(20))
            mortal_pair.fail_over()
        with mortal_pair.replica.client() as client:
            assert DelayedQueue(client, "celery").size() == 40

    def test_loses_what_was_not(self, mortal_pair: Pair, ledger_url: str) -> None:
        """Without the option, the caller is told that all is well. With it, each call fails."""
        with shop(mortal_pair, ledger_url, replicas=0) as careless, shop(mortal_pair, ledger_url) as careful:
            mortal_pair.suspend()
            delay(careless, "lost")
            with pytest.raises(NotReplicated):
                delay(careful, "lost, too")
            mortal_pair.fail_over()
        with mortal_pair.replica.client() as client:
            assert DelayedQueue(client, "celery").size() == 0


class TestNotReplicated:
    @pytest.mark.one_server("no server is asked")
    def test_is_what_callers_catch(self) -> None:
        assert issubclass(NotReplicated, DelayqError)
        assert issubclass(NotReplicated, OperationalError)

    def test_celery_publishes_again_and_the_message_is_stored_once(self, pair: Pair | Pairs, ledger_url: str) -> None:
        with shop(pair, ledger_url) as app, pair.lagging():
            with pytest.raises(NotReplicated):
                app.tasks["note"].apply_async(task_id="a", countdown=HOUR, retry_policy={"max_retries": 2})
            with pair.client() as client:
                assert client.info("commandstats")["cmdstat_wait"]["calls"] == 3
                assert DelayedQueue(client, "celery").size() == 1

    @pytest.mark.one_server("it looks into the replica")
    def test_a_retry_that_succeeds_is_a_success(self, pair: Pair, ledger_url: str) -> None:
        with shop(pair, ledger_url) as app, pair.lagging():
            app.tasks["note"].apply_async(
                task_id="a",
                countdown=HOUR,
                retry_policy={
                    "max_retries": 50,
                    "errback": lambda exc, interval: pair.resume(),
                },
            )
            with pair.replica.client() as client:
                assert DelayedQueue(client, "celery").size() == 1

    def test_of_many_tasks_says_that_they_are_uncertain(self, pair: Pair | Pairs, ledger_url: str) -> None:
        with shop(pair, ledger_url) as app, pair.lagging():
            with pytest.raises(NotAllSent, match="NotReplicated") as caught:
                app.delayq.apply_async_many(app.tasks["note"].s().set(eta=LATER) for _ in range(3))
            assert (caught.value.sent, len(caught.value.failed), len(caught.value.uncertain)) == (0, 0, 3)
            assert isinstance(caught.value.__cause__, NotReplicated)
            with pair.client() as client:
                client.config_resetstat()
                with pytest.raises(NotAllSent):
                    app.delayq.apply_async_many(caught.value.uncertain)
                assert client.info("commandstats")["cmdstat_wait"]["calls"] == 1
                assert DelayedQueue(client, "celery").size() == 3

    def test_a_refusal_is_told_first(self, pair: Pair | Pairs, ledger_url: str) -> None:
        with shop(pair, ledger_url) as app, pair.client() as client, pair.lagging():
            client.set("redisson_delay_queue_timeout:{celery}", "no ZSET")
            with pytest.raises(OperationalError, match="WRONGTYPE"):
                delay(app, "a")


def test_without_the_option_nothing_waits(pair: Pair | Pairs, ledger_url: str) -> None:
    with shop(pair, ledger_url, replicas=0) as app, pair.client() as client:
        delay(app, "a")
        delay(app, "b", None)
        app.delayq.cancel("a")
        assert "cmdstat_wait" not in client.info("commandstats")

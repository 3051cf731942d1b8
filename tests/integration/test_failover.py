"""After a failover, workers go on by themselves, with all their queues, and say what was lost."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from celery import Celery
from dateutil.parser import isoparse
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue
from celery_delayq.queue.keys import QueueKeys
from examples.private_redis import PrivateRedis
from tests.cli.running import run
from tests.ledger import Execution, Ledger
from tests.pair import Pair, replicated
from tests.sentinel import MASTER_NAME, Replicated
from tests.sentinel import replicated as with_sentinel
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.one_server("Sentinel and lists of servers; see redis_cluster/test_failover.py")

QUEUES = ["celery", "second"]

#: Celery's pauses between attempts to connect are 2, 4, 6 s and so on: after so long, the current one would be 6 s.
LONG_S = 8.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Replicated]:
    with with_sentinel(tmp_path) as servers:
        yield servers


@pytest.fixture
def worker(servers: Replicated, ledger: Ledger) -> Iterator[Worker]:
    with Worker(
        "-Q", ",".join(QUEUES), pool="prefork", broker=servers.url, ledger=ledger.url, conf=servers.conf
    ) as worker:
        yield worker


@pytest.fixture
def app(servers: Replicated, ledger: Ledger) -> Iterator[Celery]:
    with publisher(servers.url, ledger.url, **servers.conf) as app:
        yield app


def run_one_of_each(app: Celery, ledger: Ledger) -> None:
    """Publish tasks to each queue, with and without a countdown; wait until they have run."""
    note = app.tasks["note"]
    ids = [note.apply_async(queue=queue, countdown=countdown).id for queue in QUEUES for countdown in (None, 0.1)]
    wait_until(lambda: set(ids) <= {run.task_id for run in ledger.runs()}, "each queue is served", 30)


def wait_for_promotion(servers: Replicated) -> None:
    with servers.sentinel.client() as client:
        wait_until(
            lambda: int(client.sentinel_get_master_addr_by_name("shop")[1]) == servers.replica.port,
            "Sentinel names the replica",
            60,
        )


def calls_of_info(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_info"]["calls"])


def runs_of(task_id: str, ledger: Ledger) -> int:
    return [run.task_id for run in ledger.runs()].count(task_id)


def finished(task_id: str, ledger: Ledger) -> list[Execution]:
    return [it for it in ledger.executions() if it.task_id == task_id and it.ended_s is not None]


def nothing_in_flight(server: PrivateRedis, queue: str) -> bool:
    with server.client() as client:
        return not any(client.scan_iter(f"delayq:inflight:{{{queue}}}:*"))


def wait_until_at_rest(servers: Replicated, worker: Worker) -> None:
    """Wait until the worker waits for messages on all of its connections, so that it opens no more of them."""
    for text in ("ready.", "Lease renewal of consumer", "Transfer of delayed messages: connected"):
        worker.wait_for_log(text)
    with servers.master.client() as client:

        def waits() -> bool:
            clients = client.info("clients")
            return bool(clients["tracking_clients"] == 1 and clients["blocked_clients"] >= len(QUEUES))

        wait_until(waits, "it waits for messages")


class TestSentinel:
    def test_a_master_that_dies(self, servers: Replicated, worker: Worker, app: Celery, ledger: Ledger) -> None:
        run_one_of_each(app, ledger)
        servers.fail_over()
        wait_for_promotion(servers)
        worker.wait_for_log("Redis failed over: ")
        run_one_of_each(app, ledger)
        assert worker.log.count("Redis failed over: ") == 1
        assert f"the master is 127.0.0.1:{servers.replica.port} now" in worker.log

    @pytest.mark.thorough
    def test_a_master_that_hangs(self, servers: Replicated, worker: Worker, app: Celery, ledger: Ledger) -> None:
        """Its connections last: only Sentinel tells that there is another one."""
        run_one_of_each(app, ledger)
        os.kill(servers.master.pid, signal.SIGSTOP)
        try:
            wait_for_promotion(servers)
            worker.wait_for_log("Redis failed over: ")
            run_one_of_each(app, ledger)
        finally:
            os.kill(servers.master.pid, signal.SIGCONT)
        assert "Sentinel names" in worker.log

    @pytest.mark.thorough
    def test_a_machine_with_the_master_and_a_sentinel_that_hangs(self, tmp_path: Path, ledger: Ledger) -> None:
        """Even if it is the sentinel that the worker listens to, and that is asked first."""
        with (
            with_sentinel(tmp_path, sentinels=3) as servers,
            ExitStack() as stack,
            Worker(
                "-Q", ",".join(QUEUES), pool="prefork", broker=servers.url, ledger=ledger.url, conf=servers.conf
            ) as worker,
        ):
            with publisher(servers.url, ledger.url, **servers.conf) as app:
                run_one_of_each(app, ledger)
            worker.wait_for_log("Listening to Redis Sentinel: connected")
            for one in (servers.master, servers.sentinel):
                os.kill(one.pid, signal.SIGSTOP)
                stack.callback(os.kill, one.pid, signal.SIGCONT)
            worker.wait_for_log("Redis failed over: ", timeout=40)
            with publisher(servers.url, ledger.url, **servers.conf) as app:
                run_one_of_each(app, ledger)
            assert "ended" in worker.log
            assert f"the master is 127.0.0.1:{servers.replica.port} now" in worker.log

    def test_results_do_not_wait_for_a_sentinel_that_hangs(self, tmp_path: Path, ledger: Ledger) -> None:
        """The next one is asked after half a second, whoever asks: a publisher awaits its result."""
        with with_sentinel(tmp_path, sentinels=3) as servers:
            conf = {"result_backend": servers.url, "result_backend_transport_options": {"master_name": MASTER_NAME}}
            with publisher(servers.url, ledger.url, **servers.conf, **conf) as app:
                os.kill(servers.sentinel.pid, signal.SIGSTOP)
                try:
                    started = time.monotonic()
                    result = app.tasks["note"].apply_async(countdown=60)
                    app.backend.store_result(result.id, 42, "SUCCESS")
                    assert result.get(timeout=10) == 42
                    assert time.monotonic() - started < 5
                finally:
                    os.kill(servers.sentinel.pid, signal.SIGCONT)

    def test_a_sentinel_that_dies_and_comes_back(
        self, servers: Replicated, worker: Worker, app: Celery, ledger: Ledger
    ) -> None:
        worker.wait_for_log("Listening to Redis Sentinel: connected")
        wait_until_at_rest(servers, worker)
        servers.sentinel.kill()
        worker.wait_for_log("Listening to Redis Sentinel interrupted")
        servers.sentinel.start()
        worker.wait_for_log("Listening to Redis Sentinel: connected", times=2)
        run_one_of_each(app, ledger)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with replicated() as pair:
        yield pair


class TestSeveralUrls:
    @pytest.mark.thorough
    def test_the_replica_is_promoted_after_a_while(self, pair: Pair, ledger: Ledger) -> None:
        """The worker does not sleep through it, and does not fill the log."""
        with Worker("-Q", ",".join(QUEUES), pool="prefork", broker=pair.urls, ledger=ledger.url) as worker:
            with publisher(pair.url, ledger.url) as app:
                run_one_of_each(app, ledger)
            pair.master.kill()
            worker.wait_for_log("Trying again now")
            lost = time.monotonic()
            wait_until(lambda: time.monotonic() > lost + LONG_S, "it has tried again and again")
            lines = worker.log.count("Trying again now")
            assert lines <= LONG_S / 2
            with pair.replica.client() as client:
                client.replicaof("NO", "ONE")
            worker.wait_for_log("Redis failed over: ")
            with publisher(f"delayq://127.0.0.1:{pair.replica.port}/0", ledger.url) as app:
                run_one_of_each(app, ledger)

    @pytest.mark.thorough
    def test_what_was_lost_is_said(self, pair: Pair, ledger: Ledger) -> None:
        with (
            Worker(pool="prefork", broker=pair.urls, ledger=ledger.url) as worker,
            publisher(pair.url, ledger.url) as app,
        ):
            pair.wait_until_replicated()
            pair.suspend()
            with pair.master.client() as client:
                own = itertools.count(1)
                app.tasks["note"].apply_async(countdown=3600)
                before = calls_of_info(client)
                wait_until(lambda: calls_of_info(client) - before - next(own) >= 2, "the worker has asked", 20)
            pair.fail_over()
            worker.wait_for_log("bytes of replication are lost")
            assert worker.log.count("bytes of replication are lost") == 1


class TestWhatWorkersDoDoesNotWait:
    """The last section of docs/failover.md, part by part: what is lost happens again, and no task is."""

    def test_a_transfer(self, pair: Pair) -> None:
        with pair.master.client() as client:
            queue = DelayedQueue(client, "q")
            queue.offer(b"message", countdown=0)
            pair.wait_until_replicated()
            pair.suspend()
            assert queue.transfer().moved == 1
        pair.fail_over()
        with pair.replica.client() as client:
            assert client.llen("q") == 0
            assert DelayedQueue(client, "q").transfer().moved == 1
            assert client.lrange("q", 0, -1) == [b"message"]

    def test_a_fetch(self, pair: Pair, ledger: Ledger) -> None:
        """The message is in its queue again."""
        with Worker(broker=pair.urls, ledger=ledger.url) as worker, publisher(pair.url, ledger.url) as app:
            result = app.tasks["note"].apply_async(queue="second")
            pair.wait_until_replicated()
            pair.suspend()
            wait_until(lambda: app.control.add_consumer("second", reply=True), "it consumes the queue")
            wait_until(lambda: runs_of(result.id, ledger) == 1, "it runs")
            pair.fail_over()
            wait_until(lambda: runs_of(result.id, ledger) == 2, "it runs again", 30)
            wait_until(lambda: nothing_in_flight(pair.replica, "second"), "it is acknowledged", 30)
            assert "Redis failed over" in worker.log

    @pytest.mark.thorough
    def test_an_acknowledgement(self, pair: Pair, ledger: Ledger) -> None:
        """The message is in flight again, for a consumer that is no more."""
        conf = {"broker_transport_options": {"lease": 3.0}}
        with (
            Worker(broker=pair.urls, ledger=ledger.url, conf=conf) as worker,
            publisher(pair.url, ledger.url) as app,
        ):
            result = app.tasks["work_late"].apply_async((2.0,))
            wait_until(lambda: ledger.executions(), "it runs")
            pair.wait_until_replicated()
            pair.suspend()
            wait_until(lambda: nothing_in_flight(pair.master, "celery"), "it is acknowledged")
            pair.fail_over()
            wait_until(lambda: len(finished(result.id, ledger)) == 2, "it runs again", 60)
            wait_until(lambda: nothing_in_flight(pair.replica, "celery"), "it is acknowledged", 30)
            assert "Redis failed over" in worker.log

    @pytest.mark.thorough
    def test_a_lease(self, pair: Pair, ledger: Ledger) -> None:
        """The worker joins again, so another one does not take what it holds."""
        pair.wait_until_replicated()
        pair.suspend()
        with Worker(broker=pair.urls, ledger=ledger.url), publisher(pair.url, ledger.url) as app:
            key = QueueKeys.of("celery").consumers
            with pair.master.client() as client:
                wait_until(lambda: client.zcard(key) == 1, "it has a lease")
            pair.fail_over()
            with pair.replica.client() as client:
                wait_until(lambda: client.zcard(key) == 1, "it has a lease again", 30)
            with publisher(f"delayq://127.0.0.1:{pair.replica.port}/0", ledger.url) as app:
                result = app.tasks["work_late"].apply_async((2.0,))
                wait_until(lambda: len(finished(result.id, ledger)) == 1, "it runs", 30)

    @pytest.mark.thorough
    def test_a_planned_occurrence(self, pair: Pair, ledger: Ledger) -> None:
        """It is planned again, and so are those after it; none is skipped."""
        entry = {"task": "note_request", "schedule": 0.5}
        conf = {"beat_scheduler": "celery_delayq.beat:Scheduler", "beat_schedule": {"often": entry}}
        with Worker(broker=pair.urls, ledger=ledger.url, conf=conf):
            wait_until(lambda: len(ledger.runs()) >= 2, "it runs", 30)
            pair.wait_until_replicated()
            pair.suspend()
            before = len(ledger.runs())
            wait_until(lambda: len(ledger.runs()) >= before + 4, "four occurrences are lost")
            pair.fail_over()
            then = len(ledger.runs())
            wait_until(lambda: len(ledger.runs()) >= then + 8, "it goes on", 30)
        etas = sorted({isoparse(run.note["eta"]).timestamp() for run in ledger.runs()})
        late = [after - before for before, after in itertools.pairwise(etas)]
        assert min(late) > 0.4


class TestRetries:
    def test_a_worker_gives_up_as_late_as_with_celery_alone(self, ledger: Ledger) -> None:
        """`broker_connection_max_retries` counts Celery's pauses: 2 s and 4 s."""
        with PrivateRedis() as server:
            url = server.url.replace("redis://", "delayq://")
            conf = {"broker_connection_max_retries": 1}
            with Worker(pool="solo", broker=url, ledger=ledger.url, conf=conf) as worker:
                server.kill()
                lost = time.monotonic()
                worker.wait()
                assert time.monotonic() - lost > 1.9
                assert worker.log.count("Trying again now") == 1

    def test_a_worker_that_shall_stop_stops(self, ledger: Ledger) -> None:
        with PrivateRedis() as server:
            url = server.url.replace("redis://", "delayq://")
            with Worker(pool="solo", broker=url, ledger=ledger.url) as worker:
                server.kill()
                worker.wait_for_log("Trying again now")
                worker.send_signal(signal.SIGTERM)
                worker.wait()


class TestPublisher:
    @pytest.mark.parametrize("countdown", [None, 60])
    def test_a_server_that_hangs_is_an_error_after_socket_timeout(self, ledger: Ledger, countdown: int | None) -> None:
        with PrivateRedis() as server:
            url = server.url.replace("redis://", "delayq://")
            with publisher(url, ledger.url, broker_transport_options={"socket_timeout": 0.5}) as app:
                note = app.tasks["note"]
                note.apply_async(countdown=60)
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    with pytest.raises(OperationalError, match=r"[Tt]imeout"):
                        note.apply_async(countdown=countdown, retry=False)
                finally:
                    os.kill(server.pid, signal.SIGCONT)

    def test_nobody_waits_for_ever(self) -> None:
        """kombu has no limit by itself."""
        with (
            PrivateRedis() as server,
            publisher(server.url.replace("redis", "delayq", 1), server.url) as app,
            app.connection_for_write() as connection,
        ):
            assert connection.default_channel.pool.connection_kwargs["socket_timeout"] == 10


def test_a_check_knows_that_sentinel_may_fail_over(servers: Replicated, app: Celery) -> None:
    done = run(app, "check", "--json")
    assert {line["check"]: line["level"] for line in done.lines()}["permissions"] == "ok"
    assert done.code == 0
    replicas = [line for line in done.lines() if line["check"] == "replicas"]
    assert [line["level"] for line in replicas] == ["warning", "warning"]
    assert "Add a second replica, then set it to 1." in replicas[0]["advice"]
    assert {tuple(line["servers"]) for line in replicas} == {(f"127.0.0.1:{servers.master.port}",)}


def test_commands_say_in_short_that_no_sentinel_answers(servers: Replicated, app: Celery) -> None:
    servers.sentinel.kill()
    done = run(app, "check", "--json")
    assert done.code == 1
    (finding,) = (line for line in done.lines() if line["check"] == "server")
    assert finding["message"].endswith(": No master found for 'shop'.")


@pytest.mark.thorough
def test_the_transfer_command_goes_on_with_the_new_master(servers: Replicated, app: Celery, ledger: Ledger) -> None:
    with CeleryCommand("delayq", "transfer", broker=servers.url, ledger=ledger.url, conf=servers.conf) as command:
        note = app.tasks["note"]
        with servers.master.client() as client:
            note.apply_async(countdown=1)  # if it is due when it is sent, nobody has to transfer it
            wait_until(lambda: client.llen("celery") == 1, "it is in the list")
            note.apply_async(countdown=3)
            servers.fail_over()
        with servers.replica.client() as client:
            wait_until(lambda: client.llen("celery") == 2, "the other one, too", 60)
        command.send_signal(signal.SIGTERM)
        assert command.wait() == 0
        assert "2 tasks transferred." in command.log


def test_the_transfer_command_goes_on_with_the_next_url(ledger: Ledger) -> None:
    """And ends as always while all servers are away."""
    with PrivateRedis() as first, PrivateRedis() as second, second.client() as client:
        urls = [server.url.replace("redis", "delayq", 1) for server in (first, second)]
        with (
            CeleryCommand("delayq", "transfer", "-l", "DEBUG", broker=";".join(urls), ledger=ledger.url) as command,
            publisher(urls[1], ledger.url) as app,
        ):
            command.wait_for_log("connected.")
            first.kill()
            app.tasks["note"].apply_async(countdown=1)
            wait_until(lambda: client.llen("celery") == 1, "it is in the list", 60)
            # The server may be killed between the transfer and its reply: the command would not know of it.
            command.wait_for_log("Transferred 1 to")
            second.kill()
            command.send_signal(signal.SIGTERM)
            assert command.wait() == 0
            assert "1 task transferred." in command.log
            assert "Traceback" not in command.log

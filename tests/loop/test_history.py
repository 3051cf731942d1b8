"""What is said about the data of a server after it has died: what was lost, in bytes where Redis tells."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keeper import Keeper
from celery_delayq.transfer import failover_log as history_module
from celery_delayq.transfer.failover_log import QUIET_S, REPLICATED_S, FailoverLog
from celery_delayq.transfer.loop import TransferLoop
from examples.private_redis import PrivateRedis
from tests.pair import Pair, replicated
from tests.support import wait_until

HOUR_S = 3600.0

#: What a master says of its data.
BEFORE = {
    "role": "master",
    "master_replid": "a" * 40,
    "master_repl_offset": 1000,
    "master_replid2": "0" * 40,
    "second_repl_offset": -1,
    "repl_backlog_active": 1,
}


class FakeClient:
    """Answers INFO with what it is given."""

    def __init__(self, port: int, **info: Any) -> None:
        self.connection_pool = redis.ConnectionPool(port=port)
        self._info = info

    def info(self, section: str) -> dict[str, Any]:
        return self._info


@pytest.fixture
def pair() -> Iterator[Pair]:
    with replicated() as pair:
        yield pair


@pytest.fixture
def history(caplog: pytest.LogCaptureFixture) -> FailoverLog:
    caplog.set_level("INFO", logger="history")
    return FailoverLog(logging.getLogger("history"))


def offer(server: PrivateRedis) -> None:
    with server.client() as client:
        DelayedQueue(client, "q").offer(b"message" * 100, countdown=HOUR_S)


def read(history: FailoverLog, server: PrivateRedis) -> None:
    with server.client() as client:
        history.read(client)


def offset_of(server: PrivateRedis) -> int:
    with server.client() as client:
        return int(client.info("replication")["master_repl_offset"])


def wait_for_replica(pair: Pair) -> None:
    with pair.master.client() as client:
        client.incr("x")
        assert client.wait(1, 10_000) == 1


class TestFailover:
    def test_the_lost_bytes_are_said(self, pair: Pair, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        wait_for_replica(pair)
        pair.suspend()
        kept = offset_of(pair.master)
        offer(pair.master)
        lost = offset_of(pair.master) - kept
        read(history, pair.master)
        pair.fail_over()
        read(history, pair.replica)
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        said = re.search(r"At least (\d+) bytes", record.message)
        assert said
        assert lost <= int(said[1]) <= lost + 100  # a ping may have been under way
        new, old = pair.replica.port, pair.master.port
        assert f"the master is 127.0.0.1:{new} now, and no longer 127.0.0.1:{old}" in record.message

    def test_a_replica_that_has_everything(
        self, pair: Pair, history: FailoverLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        offer(pair.master)
        read(history, pair.master)
        wait_for_replica(pair)
        pair.fail_over()
        read(history, pair.replica)
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "No write was lost, as far as this worker knows" in record.message

    def test_it_is_said_once(self, pair: Pair, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        read(history, pair.master)
        pair.fail_over()
        for _ in range(3):
            read(history, pair.replica)
        assert len(caplog.records) == 1

    def test_a_replica_is_no_master(self, pair: Pair, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        read(history, pair.master)
        read(history, pair.replica)
        read(history, pair.master)
        assert caplog.records == []

    def test_a_master_that_is_demoted_for_a_while(
        self, pair: Pair, history: FailoverLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        read(history, pair.master)
        with pair.master.client() as client:
            client.replicaof("127.0.0.1", "1")
            client.replicaof("NO", "ONE")
        read(history, pair.master)
        assert caplog.records == []


class TestRestart:
    def test_without_replicas(self, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        """Redis does not count what it writes then."""
        with PrivateRedis() as server:
            offer(server)
            read(history, server)
            server.kill()
            server.start()
            read(history, server)
        assert caplog.records == []

    def test_a_connection_that_was_lost_is_nothing(
        self, history: FailoverLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        with PrivateRedis() as server:
            read(history, server)
            offer(server)
            read(history, server)
        assert caplog.records == []

    @pytest.mark.thorough
    def test_the_first_replica_is_no_restart(self, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        """Redis takes a new replication id then; the same after an hour without replicas."""
        with PrivateRedis() as server:
            read(history, server)
            with PrivateRedis("--replicaof", "127.0.0.1", str(server.port)) as replica, replica.client() as client:
                wait_until(lambda: client.role()[3] == b"connected", "the replica follows", 20)
                read(history, server)
                with server.client() as same:
                    history.read(same)
        assert caplog.records == []


class TestWhatMastersSay:
    def said(self, history: FailoverLog, caplog: pytest.LogCaptureFixture, port: int = 1, **after: Any) -> str:
        """What is said when a master says something else than before; empty if nothing is."""
        for client in (FakeClient(1, **BEFORE), FakeClient(port, **{**BEFORE, **after})):
            history.read(client)  # type: ignore[arg-type]
        return caplog.text

    def test_a_server_that_never_followed_the_old_one(
        self, history: FailoverLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        after = {"master_replid": "b" * 40, "master_replid2": "c" * 40, "second_repl_offset": 500}
        assert "How much was lost cannot be told" in self.said(history, caplog, 2, **after)
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    def test_the_offset_from_which_on_it_did_not_follow_is_the_first_that_it_lacks(
        self, history: FailoverLog, caplog: pytest.LogCaptureFixture
    ) -> None:
        after = {"master_replid": "b" * 40, "master_replid2": "a" * 40, "second_repl_offset": 901}
        assert "At least 100 bytes" in self.said(history, caplog, 2, **after)

    def test_a_successor_at_the_same_address(self, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        after = {"master_replid": "b" * 40, "master_replid2": "a" * 40, "second_repl_offset": 901}
        said = self.said(history, caplog, **after)
        assert "Redis at localhost:1 was restarted, or failed over. At least 100 bytes" in said

    def test_a_restored_backup(self, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        assert "At least 600 bytes" in self.said(history, caplog, master_repl_offset=400)
        assert "last asked 0.0 s ago" in caplog.text

    def test_the_same_history_goes_on(self, history: FailoverLog, caplog: pytest.LogCaptureFixture) -> None:
        assert not self.said(history, caplog, 2, master_repl_offset=1001)

    @pytest.mark.parametrize("info", [{"redis_version": "7.0.0"}, {"role": "master"}])
    def test_a_server_that_does_not_tell(
        self, history: FailoverLog, caplog: pytest.LogCaptureFixture, info: dict[str, Any]
    ) -> None:
        history.read(FakeClient(1, **info))  # type: ignore[arg-type]
        assert caplog.records == []


def test_it_may_be_forbidden(
    history: FailoverLog, redis_server: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "+@all", "-info", "~*", "&*")
        with redis_server.client(username="worker", password="any") as client:
            history.read(client)
        admin.execute_command("ACL", "DELUSER", "worker")
    assert caplog.records == []


class TimedHistory(FailoverLog):
    """Says when the last read that has ended began."""

    began_at = 0.0

    def read(self, client: redis.Redis) -> None:
        began_at = time.monotonic()
        super().read(client)
        self.began_at = began_at


class TestLoop:
    def test_it_reads_each_second_if_there_are_replicas(self, pair: Pair) -> None:
        """Otherwise nobody would know what the old master had."""
        history = FailoverLog(logging.getLogger("history"))
        read(history, pair.master)
        assert history.next_at < time.monotonic() + REPLICATED_S + 0.1

    def test_and_less_often_while_little_is_written(self, pair: Pair) -> None:
        history = FailoverLog(logging.getLogger("history"))
        read(history, pair.master)

        def is_quiet() -> bool:  # a few bytes, such as the PING of a master, are many for the moment between two reads
            began_at = time.monotonic()
            read(history, pair.master)
            return history.next_at >= began_at + QUIET_S

        wait_until(is_quiet, "it is quiet")
        with pair.master.client() as client:
            client.set("much", "x" * 1_000_000)
        read(history, pair.master)
        assert history.next_at < time.monotonic() + REPLICATED_S + 0.1

    def test_and_soon_again_when_a_delayed_task_is_announced_or_moved(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history_module, "QUIET_S", 600.0)
        history = FailoverLog(logging.getLogger("history"))
        loop = TransferLoop(Keeper(lambda: redis.Redis(port=pair.master.port)), lambda: ["q"], failover_log=history)
        loop.start()
        try:
            wait_until(lambda: history.next_at > time.monotonic() + REPLICATED_S + 1, "it is quiet")
            later = history.next_at
            offer(pair.master)
            wait_until(lambda: history.next_at != later, "it reads soon")  # and perhaps plans the next read already
        finally:
            loop.stop()

    def test_and_rarely_if_there_are_none(self, redis_server: PrivateRedis) -> None:
        history = FailoverLog(logging.getLogger("history"))
        read(history, redis_server)
        assert history.next_at > time.monotonic() + REPLICATED_S

    @pytest.mark.thorough
    def test_a_loop_says_what_was_lost_although_it_was_idle(self, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
        port = {"port": pair.master.port}
        history = TimedHistory(logging.getLogger("history"))
        loop = TransferLoop(Keeper(lambda: redis.Redis(port=port["port"])), failover_log=history)
        loop.start()
        try:
            wait_for_replica(pair)
            pair.suspend()
            offer(pair.master)
            offered_at = time.monotonic()
            wait_until(lambda: history.began_at > offered_at, "the loop has asked again")
            pair.fail_over()
            port["port"] = pair.replica.port
            wait_until(lambda: "bytes of replication are lost" in caplog.text, "the loop says it", 20)
        finally:
            loop.stop()

"""Checks of one server, in the states that they are about."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.basics.finding import Level
from celery_delayq.health import server_checks
from celery_delayq.health.server_checks import (
    check_clock,
    check_connections,
    check_persistence,
    check_replication,
    check_version,
)
from celery_delayq.health.servers import Server, examine, servers_of
from examples.private_redis import PrivateRedis, name_and_version
from tests.pair import replicated
from tests.support import wait_until


@pytest.fixture
def server(any_redis_server: PrivateRedis) -> Iterator[Server]:
    with any_redis_server.client() as client:
        yield servers_of(client)[0]


def test_the_server_and_its_version_are_named(server: Server) -> None:
    (finding,) = check_version(server)
    assert finding.level is Level.OK
    assert finding.message == f"{name_and_version(server.client.info('server'))}."


class TestConnections:
    @pytest.fixture(autouse=True)
    def limit(self, server: Server) -> Iterator[None]:
        yield
        server.client.config_set("maxclients", 10_000)

    @pytest.mark.parametrize(("limit", "level"), [(500, Level.OK), (12, Level.ERROR)])
    def test_few_of_them(self, server: Server, limit: int, level: Level) -> None:
        server.client.config_set("maxclients", limit)
        (finding,) = check_connections(server)
        assert finding.level is level
        assert f"of {limit} connections are left" in finding.message

    def test_less_than_a_tenth_of_them(self, server: Server, any_redis_server: PrivateRedis) -> None:
        server.client.config_set("maxclients", 200)
        others = [any_redis_server.client() for _ in range(185)]
        try:
            for one in others:
                one.ping()
            (finding,) = check_connections(server)
            assert finding.level is Level.WARNING
            assert "maxclients" in finding.advice
        finally:
            for one in others:
                one.close()


class TestClock:
    def test_clocks_that_agree(self, server: Server) -> None:
        (finding,) = check_clock(server)
        assert finding.level is Level.OK

    @pytest.mark.parametrize(
        ("ahead_s", "level", "side", "effect"),
        [
            (20, Level.WARNING, "ahead of", "late"),
            (-20, Level.WARNING, "behind", "early"),
            (3600, Level.ERROR, "ahead of", "late"),
        ],
    )
    def test_clocks_that_differ(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, ahead_s: int, level: Level, side: str, effect: str
    ) -> None:
        monkeypatch.setattr(server_checks, "time", SimpleNamespace(time=lambda: time.time() + ahead_s))
        (finding,) = check_clock(server)
        assert finding.level is level
        assert f"s {side} that of" in finding.message
        assert finding.message.endswith(f"too {effect}.")


def test_a_snapshot_that_failed_is_an_error() -> None:
    with PrivateRedis() as private, private.client() as client:
        client.config_set("save", "900 1")
        shutil.rmtree(private.dir)
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "it has failed")
        (finding,) = check_persistence(servers_of(client)[0])
        private.kill()  # it would not stop without saving
    assert finding.level is Level.ERROR
    assert "could not save a snapshot" in finding.message


def test_a_replica_is_an_error() -> None:
    with replicated() as pair, pair.replica.client() as client:
        (finding,) = check_replication(servers_of(client)[0])
    assert finding.level is Level.ERROR
    assert "refuses writes" in finding.message


def test_replicas_are_counted() -> None:
    with replicated() as pair, pair.master.client() as client:
        (finding,) = check_replication(servers_of(client)[0], replicas=1)
    assert finding.level is Level.OK
    assert finding.message.endswith("has 1 replica; callers wait for 1.")


def test_a_server_that_is_away_is_one_finding() -> None:
    with redis.Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0)) as nowhere:
        (finding,) = examine(Server("127.0.0.1:1", nowhere), {"server": check_version, "clock": check_clock})
    assert finding.level is Level.ERROR
    assert finding.message.startswith("Cannot use 127.0.0.1:1: ")
    assert finding.servers == ("127.0.0.1:1",)


def test_a_check_that_is_refused_is_a_note_and_the_others_go_on(server: Server, any_redis_server: PrivateRedis) -> None:
    rules = ("on", "nopass", "+@all", "-time", "-info", "-config", "~*", "&*")
    server.client.execute_command("ACL", "SETUSER", "shop", *rules)
    checks = {"clock": check_clock, "server": check_version, "persistence": check_persistence}
    try:
        with any_redis_server.client(username="shop", password="any") as client:
            found = list(examine(servers_of(client)[0], checks))
    finally:
        server.client.execute_command("ACL", "DELUSER", "shop")
    assert [(finding.check, finding.level) for finding in found] == [(name, Level.NOTE) for name in checks]
    assert found[0].message.startswith("Not checked: ")


def test_what_a_server_keeps_is_not_known_without_info(server: Server, any_redis_server: PrivateRedis) -> None:
    """It may write an append-only file, although it saves no snapshots."""
    server.client.execute_command("ACL", "SETUSER", "shop", "on", "nopass", "+@all", "-info", "~*", "&*")
    try:
        with any_redis_server.client(username="shop", password="any") as client:
            (finding,) = check_persistence(servers_of(client)[0])
    finally:
        server.client.execute_command("ACL", "DELUSER", "shop")
    assert finding.level is Level.NOTE

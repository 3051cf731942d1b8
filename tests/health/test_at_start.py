"""What a worker says at its start about the server."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from celery_delayq import register
from celery_delayq.basics.errors import UnsupportedServer
from celery_delayq.basics.finding import Finding, Level
from celery_delayq.health.at_start import check_servers, say_at_start
from celery_delayq.health.servers import servers_of
from examples.private_redis import PrivateRedis, name_and_version
from tests.pair import replicated


@pytest.fixture
def admin(any_redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    """A client that may change the server's configuration, which the end of the test restores."""
    with any_redis_server.client() as client:
        before = client.config_get("maxmemory*") | client.config_get("save")
        yield client
        for name in ("maxmemory", "maxmemory-policy", "save"):
            client.config_set(name, before[name])
        client.config_set("appendonly", "no")


def check_server(client: redis.Redis, *, replicas: int = 0, has_sentinel: bool = False) -> list[Finding]:
    return check_servers(servers_of(client), replicas=replicas, has_sentinel=has_sentinel)


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def test_a_server_without_persistence_is_warned_of(admin: redis.Redis) -> None:
    (finding,) = check_server(admin)
    assert finding.level is Level.WARNING
    assert "appendonly yes" in finding.advice


@pytest.mark.parametrize(("name", "value"), [("appendonly", "yes"), ("save", "900 1")])
def test_a_server_with_persistence_is_well(admin: redis.Redis, name: str, value: str) -> None:
    admin.config_set(name, value)
    assert check_server(admin) == []


@pytest.mark.parametrize(
    ("policy", "maxmemory"), [("allkeys-lru", 0), ("allkeys-random", 2**30), ("volatile-ttl", 2**30)]
)
def test_a_server_that_evicts_keys_is_warned_of(admin: redis.Redis, policy: str, maxmemory: int) -> None:
    admin.config_set("save", "900 1")
    admin.config_set("maxmemory-policy", policy)
    admin.config_set("maxmemory", maxmemory)
    (finding,) = check_server(admin)
    assert finding.level is Level.WARNING
    assert f"maxmemory-policy {policy}" in finding.message
    assert "noeviction" in finding.advice


def test_options_that_nothing_reads_are_warned_of(
    admin: redis.Redis, any_redis_server: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    admin.config_set("save", "900 1")
    register()
    app = Celery("shop", broker=f"delayq://localhost:{any_redis_server.port}", set_as_current=False)
    with app.connection_for_write() as connection, caplog.at_level(logging.INFO):
        app.conf.broker_transport_options = {"visibilty_timeout": 60, "leese": 5}
        say_at_start(logging.getLogger("celery_delayq.test"), app, connection.default_channel)
    first, second = caplog.records
    assert first.getMessage().endswith("All options have their defaults.")
    assert (second.levelname, second.getMessage()) == (
        "WARNING",
        "Unknown option 'visibilty_timeout' in broker_transport_options: nothing reads it. "
        "Did you mean 'visibility_timeout'?",
    )


def test_a_clock_that_is_off_is_warned_of(admin: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.config_set("save", "900 1")
    monkeypatch.setattr(admin, "time", lambda: divmod(round((time.time() + 2) * 1_000_000), 1_000_000))
    (finding,) = check_server(admin)
    assert finding.level is Level.WARNING
    assert "is 2.0 s behind" in finding.message


def test_a_volatile_policy_without_a_limit_evicts_nothing(admin: redis.Redis) -> None:
    admin.config_set("save", "900 1")
    admin.config_set("maxmemory-policy", "volatile-lru")
    assert check_server(admin) == []


def test_a_server_whose_memory_is_nearly_full_is_warned_of(admin: redis.Redis) -> None:
    admin.config_set("save", "900 1")
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] * 1.05))
    (finding,) = check_server(admin)
    assert finding.level is Level.WARNING
    assert re.search(r"has used 9\d % of maxmemory; when it is full, publishing fails\.", finding.message)


def test_a_server_whose_memory_is_full_is_an_error(admin: redis.Redis) -> None:
    admin.config_set("save", "900 1")
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] // 2)
    (finding,) = check_server(admin)
    assert finding.level is Level.ERROR
    assert re.search(r"is full \(\d+\.\d of \d+\.\d MB\): publishing fails\.", finding.message)


def test_a_user_who_may_not_read_the_configuration_is_not_bothered(
    admin: redis.Redis, any_redis_server: PrivateRedis
) -> None:
    admin.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "+@all", "-config", "~*", "&*")
    try:
        with any_redis_server.client(username="worker", password="any") as client:
            assert check_server(client) == []
    finally:
        admin.execute_command("ACL", "DELUSER", "worker")


def test_the_server_is_called_by_its_name(admin: redis.Redis) -> None:
    name = name_and_version(admin.info("server")).partition(" ")[0]
    (finding,) = check_server(admin)
    assert finding.message.startswith(f"{name} has no persistence")


def test_the_findings_do_not_depend_on_what_the_client_decodes(
    admin: redis.Redis, any_redis_server: PrivateRedis
) -> None:
    with any_redis_server.client(decode_responses=True) as client:
        assert check_server(client) == check_server(admin)


@pytest.mark.parametrize("version", ["2.8.24", "5.0.14", "6.0.16", "6.1.9"])
def test_an_old_server_is_refused(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    info = client.info()
    monkeypatch.setattr(client, "info", lambda: {**info, "redis_version": version})
    with pytest.raises(UnsupportedServer, match=rf"Redis 6\.2 or newer.*{version}$"):
        check_server(client)


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "8.2.1", "10.0.0", "255.255.255"])
def test_newer_servers_are_accepted(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    info = client.info()
    monkeypatch.setattr(client, "info", lambda: {**info, "redis_version": version})
    assert levels(check_server(client)) == [Level.WARNING]


class TestFailover:
    """What a failover may lose is said at the start."""

    @pytest.fixture(autouse=True)
    def persistence(self, admin: redis.Redis) -> None:
        admin.config_set("save", "900 1")

    def test_too_few_replicas(self, admin: redis.Redis) -> None:
        (finding,) = check_server(admin, replicas=2)
        assert finding.level is Level.WARNING
        assert "has 0 replicas, but the transport option replicas is 2" in finding.message

    def test_enough_replicas(self, admin: redis.Redis) -> None:
        with replicated() as pair, pair.master.client() as client:
            client.config_set("save", "900 1")
            assert check_server(client, replicas=1) == []

    def test_with_sentinel(self, admin: redis.Redis) -> None:
        findings = check_server(admin, has_sentinel=True)
        assert levels(findings) == [Level.WARNING, Level.WARNING]
        assert "min-replicas-to-write 0" in findings[0].message
        assert "replica-serve-stale-data yes" in findings[1].message

    def test_with_sentinel_and_a_careful_server(self, admin: redis.Redis) -> None:
        admin.config_set("min-replicas-to-write", 1)
        admin.config_set("replica-serve-stale-data", "no")
        try:
            assert check_server(admin, has_sentinel=True) == []
        finally:
            admin.config_set("min-replicas-to-write", 0)
            admin.config_set("replica-serve-stale-data", "yes")

    def test_what_concerns_a_failover_does_not_bother_others(self, admin: redis.Redis) -> None:
        assert check_server(admin) == []

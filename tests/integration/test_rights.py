"""A worker whose user may not do what it needs ends with one error, which says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import kombu
import pytest

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.redis_cluster.test_acl import PASSWORD, rules_for
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.one_server("rights on a cluster: redis_cluster/test_acl.py")


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


def allowed(server: PrivateRedis, *without: str) -> str:
    """Return the URL for a user without some rights."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "reset", *rules_for("server"), *without)
    return server.url.replace("redis://", f"delayq://shop:{quote(PASSWORD, safe='')}@")


def refused(server: PrivateRedis, ledger: Ledger, *without: str) -> str:
    """Run a worker as a user without some rights until it ends, and return its log."""
    worker = Worker(gossip=True, broker=allowed(server, *without), ledger=ledger.url)
    try:
        worker.start()
        assert worker.wait() == 1
        return worker.log
    finally:
        worker.__exit__()


@pytest.mark.parametrize(
    ("without", "rule"),
    [
        (["-publish"], "+publish"),
        (["-sadd"], "+sadd"),
        (["-multi"], "+@transaction"),
        (["resetchannels"], "&*"),
        (["resetkeys", "~celery*", "~delayq:*", "~redisson_delay_queue*"], "~_kombu.binding*"),
    ],
)
def test_the_error_names_the_missing_rights(
    server: PrivateRedis, ledger: Ledger, without: list[str], rule: str
) -> None:
    log = refused(server, ledger, *without)
    assert "`celery -A tests.worker_app delayq check`" in log
    (command,) = [line for line in log.splitlines() if line.startswith("ACL SETUSER shop ")]
    assert rule in command.split()
    assert log.count("CRITICAL") == 1
    assert "Traceback" not in log


@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="kombu 5.6 goes on without SCRIPT")
def test_a_command_that_the_server_does_not_have_is_named(ledger: Ledger) -> None:
    with PrivateRedis("--rename-command", "SCRIPT", "") as server:
        worker = Worker(gossip=True, broker=server.url.replace("redis:", "delayq:"), ledger=ledger.url)
        try:
            worker.start()
            assert worker.wait() == 1
            assert worker.log.count("CRITICAL") == 1
            assert "Redis does not know the command SCRIPT, which this worker needs." in worker.log
            assert "Traceback" not in worker.log
        finally:
            worker.__exit__()


def test_a_loop_that_is_refused_something_says_so_without_a_traceback(server: PrivateRedis, ledger: Ledger) -> None:
    """A worker ends, perhaps before its loop is refused something; the command goes on."""
    url = allowed(server, "resetchannels")
    with CeleryCommand("delayq", "transfer", broker=url, ledger=ledger.url) as command:
        command.wait_for_log("Transfer of delayed messages interrupted: ")
        assert "`delayq check` names the missing rights. Messages wait" in command.log
        assert "Traceback" not in command.log

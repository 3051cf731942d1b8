"""What docs/redis.md says that an ACL user needs is enough, on one server and on a cluster, of each kind of Redis."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from celery import chord

from celery_delayq.health.permissions import COMMANDS
from examples.private_redis import PrivateRedis
from tests.cli.running import run
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.support import servers as available
from tests.support import wait_until
from tests.worker_app import PASSWORD, publisher
from tests.workers import Worker

_MANUAL = Path(__file__).parents[2] / "docs" / "redis.md"

#: What differs between versions is which commands are dangerous.
SERVERS = available()

#: Commands that were called and that `celery delayq check` does not ask for one by one: those of connections and
#: transactions, and what the test itself sends.
UNCHECKED = {*("auth", "hello", "multi", "exec", "discard", "watch", "acl", "cluster")}

#: Queues besides `celery`; on a cluster, on all nodes.
QUEUES = ["q0", "q1", "q2"]


def rules_for(place: str) -> list[str]:
    """Return the rules of the manual for "server" or "cluster", with those for `QUEUES`."""
    server, cluster = re.findall(r"^ACL SETUSER shop (.+)$", _MANUAL.read_text(encoding="utf-8"), re.MULTILINE)
    more = [f"~{queue}*" for queue in QUEUES]
    if place == "cluster":
        more += [f"~{{{queue}}}*" for queue in QUEUES]
    rules = {"server": server, "cluster": cluster}[place].replace(">secret", f">{PASSWORD}")
    return [*rules.split(), *more]


@contextmanager
def broker(kind: str, server: Path) -> Iterator[tuple[str, list[redis.Redis]]]:
    """Run a broker that lets a user do what the manual says, and nobody else do anything; give URL and clients."""
    login = f"shop:{quote(PASSWORD, safe='')}"
    if kind == "server":
        with PrivateRedis(server=server) as private, private.client() as client:
            yield f"delayq://{login}@127.0.0.1:{private.port}/0", [client]
    else:
        with servers.cluster(server=server) as cluster:
            assert len({cluster.owner(queue) for queue in QUEUES}) == 3
            urls = (f"delayq+cluster://{login}@{node.address}" for node in cluster.nodes)
            yield ";".join(urls), [node.client for node in cluster.nodes]


@pytest.mark.parametrize(
    ("kind", "server"), [*(("server", it) for it in [*SERVERS][:1]), *(("cluster", it) for it in SERVERS)]
)
def test_the_rights_in_the_manual_are_enough(kind: str, server: str, ledger: Ledger) -> None:
    with broker(kind, SERVERS[server]) as (url, admins):
        for admin in admins:
            admin.execute_command("ACL", "SETUSER", "shop", *rules_for(kind))
            # The connection of this client stays the administrator's.
            admin.execute_command("ACL", "SETUSER", "default", "resetpass", ">admin")
        uses_everything(url, ledger)
        gc.collect()  # results unsubscribe when they are collected, for which their server must still be there
        called = {
            name.split("|")[0].removeprefix("cmdstat_") for admin in admins for name in admin.info("commandstats")
        }
        assert called - {line[0].lower() for line in COMMANDS} <= UNCHECKED
        refused = [entry for admin in admins for entry in admin.execute_command("ACL", "LOG")]
        assert not refused


def uses_everything(url: str, ledger: Ledger) -> None:
    """Use a worker that plans, results, and what can be done with tasks that wait."""
    conf = {"result_backend": url, "beat_scheduler": "celery_delayq.beat:Scheduler"}
    options = {"broker": url, "ledger": ledger.url, "conf": conf}
    with (
        publisher(url, ledger.url, **conf) as app,
        Worker("-Q", ",".join(["celery", *QUEUES]), "-E", pool="threads", gossip=True, **options) as worker,
    ):
        add, note, total = app.tasks["add"], app.tasks["note"], app.tasks["total"]
        results = [
            add.apply_async((1, number), queue=queue, priority=priority, countdown=countdown)
            for number, queue in enumerate(QUEUES)
            for priority in (0, 9)
            for countdown in (None, 0.3)
        ]
        assert [result.get(timeout=30) for result in results] == [1 + number for number in range(3) for _ in range(4)]
        assert chord([add.s(n, n) for n in range(5)], total.s()).apply_async().get(timeout=30) == 20
        many = app.delayq.apply_async_many(note.s(n).set(countdown=3600, queue=QUEUES[n % 3]) for n in range(9))
        first, second, third, *_ = (result.id for result in many)
        assert len(app.delayq.scheduled()) == 9
        assert app.delayq.cancel(first)
        assert app.delayq.reschedule(second, countdown=60)
        assert app.delayq.run_now(third)
        wait_until(lambda: ledger.has([third]), "it ran")
        app.control.revoke(many[3].id)
        wait_until(lambda: app.control.ping(timeout=2), "the worker answers")
        assert sum(queue.delayed for queue in app.delayq.counts().queues) == 6
        app.delayq.schedule.add("tick", "note", 1, ["tick"])
        wait_until(lambda: any(run.note == "tick" for run in ledger.runs()), "it ticks")
        app.delayq.schedule.remove("tick")
        for command in (("status",), ("list",), ("dead", "list"), ("schedule", "list"), ("orphans", "list")):
            done = run(app, *command)
            assert done.code == 0, done
        done = run(app, "check")
        assert "has all permissions that workers and producers need" in done.stdout, done
        app.control.purge()
        assert "NOPERM" not in worker.log
        assert "Cannot check" not in worker.log

"""A server that has no connection left: the worker says so, and goes on with those that it has."""

from __future__ import annotations

import pytest

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("see redis_cluster/test_maxclients.py")


def connections(server: PrivateRedis) -> int:
    """How many there are besides the one that asks."""
    with server.client() as client:
        return len(client.client_list()) - 1


def url_of(server: PrivateRedis) -> str:
    return server.url.replace("redis://", "delayq://")


def wanted(ledger: Ledger) -> int:
    """How many connections a worker opens if it may."""
    with PrivateRedis() as server, Worker(broker=url_of(server), ledger=ledger.url) as worker:
        worker.wait_for_log("Transfer of delayed messages: connected")
        worker.wait_for_log("Lease renewal of consumer")  # that it is connected
        with server.client() as client:
            wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits on the list of its queue")
            wait_until(lambda: client.info("clients")["tracking_clients"] == 1, "it listens for the other lists")
        return connections(server)


def test_a_worker_goes_on_with_the_connections_that_it_has(ledger: Ledger) -> None:
    few = wanted(ledger) - 1
    with PrivateRedis() as server, publisher(url_of(server), ledger.url) as app:
        note = app.tasks["note"]
        note.apply_async()
        with server.client() as client:
            limit = connections(server) + few
            client.config_set("maxclients", limit)
        with Worker(broker=url_of(server), ledger=ledger.url) as worker:
            worker.wait_for_log(f"its limit maxclients of {limit} is reached")
            wait_until(lambda: len(ledger.runs()) == 1, "the first has run")
            ids = [note.apply_async(countdown=countdown).id for countdown in (None, 0.2, None, 1.0)]
            wait_until(lambda: ledger.has(ids), "all have run")
            assert worker.log.count("its limit maxclients") == 1
            assert "Traceback" not in worker.log
            assert "Connection to broker lost" not in worker.log


def test_leases_and_transfers_come_first(ledger: Ledger) -> None:
    """Whatever has the connections: those that only wait for messages give way."""
    with PrivateRedis() as server, publisher(url_of(server), ledger.url) as app, server.client() as client:
        note = app.tasks["note"]
        note.apply_async()  # connects
        with Worker(broker=url_of(server), ledger=ledger.url) as worker:
            worker.wait_for_log("Transfer of delayed messages: connected")
            wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits on the list of its queue")
            wait_until(lambda: client.info("clients")["tracking_clients"] == 1, "it listens for the other lists")
            client.config_set("maxclients", 1)
            (subscription,) = {it["redir"] for it in client.client_list()} - {"-1", "0"}
            client.client_kill_filter(_id=subscription)
            worker.wait_for_log("its limit maxclients of 1 is reached")
            wait_until(lambda: client.info("clients")["blocked_clients"] == 0, "it waits no more")
            client.config_set(
                "maxclients", len(client.client_list()) + 2
            )  # one for the keeper, one to see what is paused
            ids = [note.apply_async(countdown=0.2).id for _ in range(3)]
            wait_until(lambda: ledger.has(ids), "all have run")


def test_a_worker_that_gets_no_connection_says_why(ledger: Ledger) -> None:
    with PrivateRedis("--maxclients", "4") as server, server.client() as client:
        client.ping()  # this one stays connected
        worker = Worker(broker=url_of(server), ledger=ledger.url)
        worker.start()
        try:
            worker.wait_for_log("max number of clients reached, as its setting maxclients says")
            client.config_set("maxclients", 100)
            worker.wait_until_ready()
            with publisher(url_of(server), ledger.url) as app:
                result = app.tasks["note"].apply_async(countdown=0.1)
                wait_until(lambda: ledger.has([result.id]), "it runs")
        finally:
            worker.__exit__()

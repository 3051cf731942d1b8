"""The class of a transport in the place of a scheme, as kombu takes it: for a connection, and as `broker_transport`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection, Producer

from celery_delayq import DelayedQueue
from celery_delayq.transport import ClusterTransport, SentinelTransport, Transport
from tests.brokers import Server
from tests.fetching.reading import Reader, queue
from tests.integration.long_tasks import in_flight
from tests.ledger import Ledger
from tests.sentinel import MASTER_NAME, replicated
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

SHOP = """
import json, os
from celery_delayq.transport import ClusterTransport, SentinelTransport, Transport
from tests.worker_app import make_app

app = make_app(os.environ["BROKER"], os.environ["LEDGER"], broker_transport=NAME, **json.loads(os.environ["CONF"]))
"""


def takes_messages(client: redis.Redis, url: str, **options: Any) -> None:
    """Over a connection of kombu, messages are published, and held in flight until they are acknowledged."""
    with Connection(url, **options) as original, original.clone() as connection:
        Producer(connection).publish("body", exchange="q", routing_key="q", declare=[queue("q")])
        it = Reader(connection.channel(), "q", ack=False)
        assert it.drain(1) == ["body"]
        assert in_flight(client) == 1
        it.acknowledge_all()


def runs_delayed_tasks(folder: Path, client: redis.Redis, ledger: Ledger, url: str, kind: type, **conf: Any) -> None:
    """With an app that has the class, tasks wait in Redis, and run."""
    Path(folder, "shop.py").write_text(SHOP.replace("NAME", kind.__name__), "utf-8")
    with (
        publisher(url, ledger.url, broker_transport=kind, **conf) as app,
        Worker(broker=url, ledger=ledger.url, app="shop", conf=conf, paths=[folder]),
    ):
        result = app.tasks["note"].apply_async(countdown=60)
        assert DelayedQueue(client, "celery").size() == 1
        assert app.delayq.run_now(result.id)
        wait_until(lambda: ledger.has([result.id]), "it runs")


def test_of_the_server_or_the_cluster(
    broker_server: Server, broker_url: str, broker_client: redis.Redis, ledger: Ledger, tmp_path: Path
) -> None:
    kind = ClusterTransport if "cluster" in broker_url else Transport
    url = "redis://" + broker_url.partition(";")[0].partition("://")[2]
    takes_messages(broker_client, url, transport=kind)
    runs_delayed_tasks(tmp_path, broker_client, ledger, url, kind)


@pytest.mark.one_server("it has servers of its own")
def test_of_sentinels(ledger: Ledger, tmp_path: Path) -> None:
    with replicated(tmp_path) as servers, servers.master.client() as client:
        url = f"sentinel://127.0.0.1:{servers.sentinel.port}/0"
        takes_messages(client, url, transport=SentinelTransport, transport_options={"master_name": MASTER_NAME})
        runs_delayed_tasks(tmp_path, client, ledger, url, SentinelTransport, **servers.conf)

"""The example of examples/java runs as its README says, and builds the same message in both languages."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.cluster.client import Routed
from examples.java.celery_message import CeleryMessage
from examples.private_redis import PrivateRedis
from tests.brokers import Server
from tests.interop.redisson import EXAMPLE, JVM, NEWEST, Redisson
from tests.ledger import Ledger
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

ETA_MS = 4_000_000_000_123

CALL: dict[str, Any] = {"args": [1, "grün", None], "kwargs": {"x": [1.5]}, "priority": 4, "id": "an-id", "task": "t"}


def comparable(text: str) -> dict[str, Any]:
    """A message without what may differ."""
    message: dict[str, Any] = json.loads(text)
    for name in ("origin", "argsrepr", "kwargsrepr"):
        assert message["headers"].pop(name)
    assert message["properties"].pop("delivery_tag")
    return {**message, "body": json.loads(b64decode(message["body"]))}


@pytest.mark.one_server("the message is the same")
def test_java_and_python_build_the_same_message(newest: Redisson) -> None:
    eta = datetime.fromtimestamp(ETA_MS / 1000, timezone.utc)
    of_java = newest.call("build", "q", {**CALL, "eta_ms": ETA_MS, "expires_ms": ETA_MS})
    assert comparable(of_java) == comparable(CeleryMessage(**CALL, eta=eta, expires=eta).to_json("q"))
    assert CeleryMessage.parse(of_java).eta == eta


def addresses(broker: Server) -> list[str]:
    """Return the arguments of the example."""
    ports = [broker.port] if isinstance(broker, PrivateRedis) else [node.port for node in broker.cluster.nodes[:2]]
    return [f"redis://127.0.0.1:{port}" for port in ports]


def test_the_story_of_the_readme(
    class_path: Callable[[str], str], broker: Server, broker_client: redis.Redis, broker_url: str, ledger: Ledger
) -> None:
    command = [*JVM, "-cp", class_path(NEWEST), "delayq.Shop", *addresses(broker)]
    with Worker(broker=broker_url, ledger=ledger.url, app="examples.java.shop"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    readme = EXAMPLE.joinpath("README.md").read_text(encoding="utf-8")
    (promised,) = re.findall(r"prints[^\n]*:\n\n```text\n(.*?)```", readme, re.DOTALL)
    ids = r"task [0-9a-f.-]+"
    assert re.sub(ids, "task ID", done.stdout) == re.sub(ids, "task ID", promised)
    assert DelayedQueue(broker_client, "celery").size() == 0


#: Key prefix, queue, and the list for priorities 3 to 5 on a cluster.
LISTS = [
    ("", "celery", "{celery}\x06\x163"),
    ("shop:", "celery", "shop:{shop:celery}\x06\x163"),
    ("{shop}:", "celery", "{shop}:celery\x06\x163"),
    ("", "my:{shop}", "my:{shop}\x06\x163"),
    ("a}", "{shop}", "a}{shop}\x06\x163"),
]


@pytest.mark.one_server("no server is asked")
def test_java_and_python_know_the_lists_of_a_cluster(newest: Redisson) -> None:
    for keyprefix, queue, name in LISTS:
        for priority, expected in ((0, f"{keyprefix}{queue}"), (4, name)):
            call = {**CALL, "priority": priority}
            assert CeleryMessage(**call).cluster_list_name(queue, keyprefix) == expected
            assert newest.call("cluster_list_name", queue, call, keyprefix) == expected


@pytest.mark.parametrize(("keyprefix", "queue"), [names[:2] for names in LISTS])
def test_celery_uses_these_lists(
    broker_client: redis.Redis, broker_url: str, ledger: Ledger, keyprefix: str, queue: str
) -> None:
    conf = {"broker_transport_options": {"global_keyprefix": keyprefix}}
    with publisher(broker_url, ledger.url, **conf) as app:
        app.tasks["note"].apply_async(queue=queue, priority=4)
    message = CeleryMessage(**CALL)
    is_cluster = isinstance(broker_client, Routed)
    name = message.cluster_list_name(queue, keyprefix) if is_cluster else f"{keyprefix}{message.list_name(queue)}"
    assert broker_client.llen(name) == 1


@pytest.mark.one_server("it is about a file")
def test_the_newest_redisson_is_that_of_the_example() -> None:
    assert f"<redisson.version>{NEWEST}<" in EXAMPLE.joinpath("pom.xml").read_text()

"""An app that publishes to an empty database, and which of its tasks were sent with a template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.canvas import Signature
from kombu import Exchange, Queue, pools

from celery_delayq.publishing.template import PublishedTemplate
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.brokers import Server
from tests.integration.publishing import stored
from tests.worker_app import publisher

TOPIC = Exchange("news", "topic")
QUEUES = (
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("other", Exchange("other"), routing_key="other"),
    Queue("sports", TOPIC, routing_key="sports.*"),
    Queue("all", TOPIC, routing_key="#"),
)

#: The ids of what `notes` returns.
NAMES = ("first", "second", "third")


@pytest.fixture
def client(any_broker: Server) -> Iterator[redis.Redis]:
    """A client of an empty database 5, or of an empty cluster."""
    with any_broker.client(**({"db": 5} if isinstance(any_broker, PrivateRedis) else {})) as client:
        client.flushdb()
        pools.reset()  # kombu's pooled connections know of bindings that are deleted here
        yield client


@pytest.fixture
def broker_url(any_broker: Server, client: redis.Redis) -> str:
    """Where the messages go."""
    return brokers.url_of(any_broker, 5)


@pytest.fixture
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    """An app whose queues are declared, some of them on a topic exchange."""
    with publisher(broker_url, ledger_url, task_queues=QUEUES) as app:
        with app.producer_pool.acquire(block=True) as producer:  # another connection would not know the exchange's type
            for queue in QUEUES:
                queue(producer.channel).declare()
        yield app


@pytest.fixture
def by_template(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the tasks that were sent with a template."""
    ids: list[str] = []
    send = PublishedTemplate.send

    def noted(template: PublishedTemplate, signature: Signature, task_id: str, *args: Any) -> Any:
        ids.append(task_id)
        return send(template, signature, task_id, *args)

    monkeypatch.setattr(PublishedTemplate, "send", noted)
    return ids


def notes(app: Celery, **options: Any) -> list[Signature]:
    """Three tasks with ids and arguments of their own, of every kind."""
    note = app.tasks["note"]
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), {}), (("x" * 2000,), {}), ((), {"value": [1, "ä"]})]
    return [note.s(*args, **kw).set(task_id=name, **options) for name, (args, kw) in zip(NAMES, arguments, strict=True)]


def taken(client: redis.Redis) -> dict[str, list[dict[str, Any]]]:
    """All messages by list; they are gone afterwards."""
    messages = stored(client)
    keys = [key for key in client.scan_iter() if not key.startswith((b"_kombu.binding.", b"{_kombu.binding}"))]
    client.delete("-", *keys)
    return messages


def nothing(value: Any) -> None:
    """A task's function."""

"""Celery offers, Java takes; and plain values in both directions, without Celery."""

from __future__ import annotations

from base64 import b64decode

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.transfer.settings import TransferSettings
from tests.brokers import Server
from tests.interop.conftest import CURRENT_ELSEWHERE, NOT_LATE_MS, StartRedisson
from tests.interop.redisson import NEWEST, Redisson
from tests.ledger import Ledger
from tests.state import now_ms
from tests.transferring import transferring
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: No UTF-8, and bytes that formats use: a payload is any bytes.
BINARY = b"\x00\xff\x06\x16{}[]\r\n\x80" * 3


def test_java_takes_and_decodes_what_celery_offers(
    redisson: Redisson, broker_client: redis.Redis, broker_url: str, ledger: Ledger
) -> None:
    """A worker transfers, and does not consume the queue that Java takes from."""
    with Worker(broker=broker_url, ledger=ledger.url), publisher(broker_url, ledger.url) as app:
        redisson.ask("take", "to_java")
        sent = app.send_task(
            "orders.cancel", (42, "grün", None), {"reason": [1.5]}, countdown=1.2, expires=600, queue="to_java"
        )
        raw = redisson.answer()
        taken_ms = now_ms(broker_client)
        found = redisson.call("parse", "", b64decode(raw))
    due_ms = found.pop("eta_ms")
    assert 0 <= taken_ms - due_ms < NOT_LATE_MS
    assert 598_000 < found.pop("expires_ms") - due_ms < 599_000
    assert found == {
        "id": sent.id,
        "task": "orders.cancel",
        "args": [42, "grün", None],
        "kwargs": {"reason": [1.5]},
        "priority": 0,
    }


def test_java_takes_a_value_that_python_offers(redisson: Redisson, broker: Server, jobs: DelayedQueue) -> None:
    with transferring(broker, TransferSettings()):
        due_ms = now_ms(jobs.client) + 1000
        redisson.ask("take", "jobs")
        jobs.offer(BINARY, eta=to_datetime(due_ms))
        taken = b64decode(redisson.answer())
        late_ms = now_ms(jobs.client) - due_ms
    assert taken == BINARY
    assert 0 <= late_ms < NOT_LATE_MS


def test_python_takes_a_value_that_java_offers(redisson: Redisson, jobs: DelayedQueue) -> None:
    redisson.offer("jobs", BINARY, delay_ms=1000)
    (entry,) = jobs.peek()
    assert entry.payload == BINARY
    assert jobs.take(timeout=30) == BINARY
    assert 0 <= now_ms(jobs.client) - entry.score < NOT_LATE_MS


@pytest.mark.parametrize("version", [NEWEST, CURRENT_ELSEWHERE])
def test_java_alone_transfers_what_python_offers(
    start_redisson: StartRedisson, jobs: DelayedQueue, version: str
) -> None:
    """The notification of a new head reaches Redisson, and so does an entry that was there before it."""
    redisson = start_redisson(version)
    due_ms = now_ms(jobs.client) + 3000
    jobs.offer(b"later", eta=to_datetime(due_ms))
    redisson.call("transfer", "jobs")
    jobs.offer(b"sooner", eta=to_datetime(due_ms - 2000))
    for payload, wanted_ms in ((b"sooner", due_ms - 2000), (b"later", due_ms)):
        assert redisson.value("poll_ready", "jobs", 30_000) == payload
        assert 0 <= now_ms(jobs.client) - wanted_ms < NOT_LATE_MS


@pytest.mark.one_server("the text is the same")
def test_text_of_java_is_utf8_for_python(start_redisson: StartRedisson, jobs: DelayedQueue) -> None:
    redisson = start_redisson(NEWEST, "string")
    redisson.offer("jobs", "grün".encode(), delay_ms=10)
    assert jobs.take(timeout=30) == "grün".encode()

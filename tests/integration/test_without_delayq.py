"""Processes that have no `DelayQ(app)` and use `delayq://` URLs all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
import redis

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.support import wait_until
from tests.workers import CeleryCommand

pytestmark = pytest.mark.on_cluster

#: As `celery_worker` and `celery_session_worker` of Celery's pytest plugin have it.
FIXTURE = """
import sys
import celery_delayq
from celery import Celery
from celery.contrib.testing.worker import start_worker

for _ in range(2):
    celery_delayq.register()
app = Celery("fixture", broker=sys.argv[1], backend=sys.argv[2])

@app.task
def add(x, y):
    return x + y

with start_worker(app, perform_ping_check=False, loglevel="INFO"):
    assert add.delay(1, 2).get(timeout=20) == 3
    assert add.apply_async((3, 4), countdown=0.3).get(timeout=20) == 7
"""


def run(code: str, *arguments: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_in_a_test(broker_url: str, redis_server: PrivateRedis) -> None:
    run(FIXTURE, broker_url, f"delayq://127.0.0.1:{redis_server.port}/7")


def test_kombu_alone(broker_url: str) -> None:
    run(
        "import sys, celery_delayq, kombu; celery_delayq.register(); kombu.Connection(sys.argv[1]).connect()",
        broker_url,
    )


@pytest.mark.one_server("kombu has to know the scheme of several URLs")
@pytest.mark.parametrize("scheme", ["delayq", "redis"])
def test_the_transport_by_its_name_needs_nothing_registered(broker_url: str, scheme: str) -> None:
    code = "import sys, kombu; kombu.Connection(sys.argv[1], transport='celery_delayq.transport:Transport').connect()"
    run(code, broker_url.replace("delayq", scheme))


@pytest.mark.parametrize("scheduler", ["delayq", "celery_delayq.beat:Scheduler"])
def test_beat_with_our_scheduler(broker_url: str, broker_client: redis.Redis, ledger: Ledger, scheduler: str) -> None:
    broker_client.flushall()
    conf = {
        "delayqs": 0,
        "beat_scheduler": scheduler,
        "beat_schedule": {"often": {"task": "note", "schedule": 60.0}},
    }
    with CeleryCommand("beat", broker=broker_url, ledger=ledger.url, conf=conf):
        wait_until(lambda: broker_client.exists("delayq:schedule:{celery}"), "it has planned", 30)

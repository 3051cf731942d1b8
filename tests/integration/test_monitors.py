"""Monitors that know brokers by the name `redis`, with that URL of the server: Flower, and celery-exporter.

Events and remote control go through the same keys and channels with either URL.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.integration.test_flower import MONITORS, Flower, scheduled
from tests.ledger import Ledger
from tests.support import missing, wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("these programs cannot use a cluster")

ETA = datetime(2040, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    """An app that tells monitors what it sends."""
    with publisher(broker_url, ledger_url, task_send_sent_event=True) as app:
        yield app


@pytest.fixture(scope="module")
def redis_url(broker_server: PrivateRedis) -> str:
    return f"redis://127.0.0.1:{broker_server.port}/0"


def test_flower_with_a_redis_url_shows_queues_tasks_and_etas_and_revokes(
    app: Celery, broker_url: str, redis_url: str, ledger: Ledger
) -> None:
    note = app.tasks["note"]
    flower = Flower("-b", redis_url, broker=broker_url, ledger=ledger.url)
    with flower.command:
        wait_until(lambda: flower.ask("/api/tasks"), "Flower answers", 30)
        for priority in (0, 0, 9):
            note.apply_async(priority=priority)
        assert json.loads(flower.ask("/api/queues/length")) == {"active_queues": [{"name": "celery", "messages": 3}]}
        page = flower.ask("/broker")
        assert redis_url in page.replace(":**@", "")
        assert re.search(r"<td[^>]*>\s*celery\s*</td>\s*<td[^>]*>\s*3\s*</td>", page)

        with Worker("-E", broker=broker_url, ledger=ledger.url):
            wait_until(lambda: "true" in flower.ask("/api/workers?status=1"), "Flower hears events: the heartbeat", 30)
            soon = note.apply_async(countdown=1)
            ran = wait_until(
                lambda: (it := json.loads(flower.ask(f"/api/task/info/{soon.id}") or "{}")).get("succeeded") and it,
                "Flower shows that it ran",
                30,
            )
            assert ran["eta"], "still, although its worker has received it"

            far = note.apply_async(eta=ETA)
            (shown,) = wait_until(lambda: scheduled(flower), "Flower shows what waits", 30)
            assert (shown["request"]["id"], shown["eta"]) == (far.id, ETA.isoformat())
            assert far.id in flower.ask(f"/api/task/revoke/{far.id}", b"")
            wait_until(lambda: app.delayq.get(far.id) is None, "a worker has removed it", 30)
            wait_until(lambda: far.state == "REVOKED", "and said so")


@contextmanager
def exporter(broker: str, tmp_path: Path) -> Iterator[str]:
    """A celery-exporter; the URL of its metrics."""
    if not Path(MONITORS, "src").exists():
        missing("no celery-exporter: `make setup` installs it (dependency group `monitors`)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # As its image does; the package from PyPI has no command.
    code = "from src.cli import cli; cli(auto_envvar_prefix='CE')"
    options = [f"--broker-url={broker}", "--host=127.0.0.1", f"--port={port}", "--queues=celery,other"]
    log = tmp_path / "exporter.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(MONITORS)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: "Started" in log.read_text() or process.poll() is not None, "it starts", 30)
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        process.kill()
        process.wait()


def test_celery_exporter_with_a_redis_url_has_queue_lengths_workers_and_tasks(
    app: Celery, broker_url: str, redis_url: str, ledger: Ledger, tmp_path: Path
) -> None:
    def metrics() -> dict[str, float]:
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                lines = response.read().decode().splitlines()
        except OSError:
            return {}
        found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in found}

    host = socket.gethostname()
    expected = {
        'celery_queue_length{queue_name="other"}': 3,
        'celery_active_worker_count{queue_name="celery"}': 1,
        **{
            f'celery_task_{event}_total{{hostname="{host}",name="add",queue_name="celery"}}': 1
            for event in ("sent", "received", "succeeded")
        },
    }
    with exporter(redis_url, tmp_path) as url, Worker("-E", broker=broker_url, ledger=ledger.url):
        wait_until(lambda: f'celery_worker_up{{hostname="{host}"}}' in metrics(), "it hears events: the heartbeat", 30)
        for _ in range(3):
            app.tasks["note"].apply_async(queue="other")
        app.tasks["add"].apply_async((1, 2), countdown=0.5)
        wait_until(lambda: expected.items() <= metrics().items(), "lengths of queues, workers and tasks", 60)

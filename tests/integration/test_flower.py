"""Flower shows a task that waits, with its eta, and revokes it."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support import missing, wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.on_cluster

#: Where `make setup` and tox install Flower and celery-exporter.
MONITORS = Path(sys.prefix, "monitors")

ETA = datetime(2040, 1, 1, tzinfo=timezone.utc)


class Flower:
    """A `celery flower` process, and what its pages and its API answer; options are those of `celery`."""

    def __init__(self, *options: str, broker: str, ledger: str) -> None:
        if not Path(MONITORS, "flower").exists():
            missing("no Flower: `make setup` installs it (dependency group `flower`)")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.command = CeleryCommand(
            *options,
            "flower",
            "--address=127.0.0.1",
            f"--port={port}",
            broker=broker,
            ledger=ledger,
            paths=[MONITORS],
            env={"FLOWER_UNAUTHENTICATED_API": "true"},
        )

    def ask(self, path: str, data: bytes | None = None) -> str:
        """Return what it answers; nothing if it is not there yet, or does not know what was asked for."""
        try:
            with urllib.request.urlopen(self.url + path, data=data, timeout=30) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            return ""
        except OSError:
            return ""


@pytest.fixture(scope="module")
def flower(broker_url: str, ledger_url: str) -> Iterator[Flower]:
    flower = Flower(broker=broker_url, ledger=ledger_url)
    with flower.command:
        wait_until(lambda: flower.ask("/api/tasks"), "Flower answers", 30)
        yield flower


@pytest.fixture(scope="module")
def worker(broker_url: str, ledger_url: str) -> Iterator[Worker]:
    with Worker("-E", broker=broker_url, ledger=ledger_url) as worker:
        yield worker


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    """An app that tells monitors what it sends."""
    with publisher(broker_url, ledger_url, task_send_sent_event=True) as app:
        yield app


def scheduled(flower: Flower) -> list[dict[str, Any]]:
    """What Flower says that its worker has scheduled."""
    workers = json.loads(flower.ask("/api/workers?refresh=1") or "{}")
    for name in workers:
        found = json.loads(flower.ask("/api/workers?refresh=1&workername=" + urllib.parse.quote(name)) or "{}")
        if found.get(name, {}).get("scheduled"):
            return list(found[name]["scheduled"])
    return []


@pytest.mark.usefixtures("worker", "ledger")
def test_the_workers_page_shows_a_waiting_task_with_its_eta_and_can_revoke_it(app: Celery, flower: Flower) -> None:
    wait_until(lambda: "true" in flower.ask("/api/workers?status=1"), "Flower hears events: the heartbeat", 30)
    result = app.tasks["note"].apply_async(eta=ETA)
    (shown,) = wait_until(lambda: scheduled(flower), "Flower shows it", 30)
    assert shown["request"]["id"] == result.id
    assert shown["eta"] == ETA.isoformat()

    page = wait_until(lambda: flower.ask(f"/task/{result.id}"), "the task's page")
    assert ETA.isoformat() in page

    assert result.id in flower.ask(f"/api/task/revoke/{result.id}", b"")
    assert result.state == "REVOKED"
    task = wait_until(
        lambda: (found := json.loads(flower.ask(f"/api/task/info/{result.id}")))["state"] == "REVOKED" and found,
        "the event",
    )
    assert task["eta"] == ETA.isoformat()

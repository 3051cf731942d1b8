"""The example of examples/java runs as its README says, and builds the same message in both languages."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import redis

from celery_delayq import DelayedQueue
from examples.java.celery_message import CeleryMessage
from examples.private_redis import PrivateRedis
from tests.interop.redisson import EXAMPLE, JVM, NEWEST, Redisson
from tests.ledger import Ledger
from tests.workers import Worker

ETA_MS = 4_000_000_000_123

CALL: dict[str, Any] = {"args": [1, "grün", None], "kwargs": {"x": [1.5]}, "priority": 4, "id": "an-id", "task": "t"}


def comparable(text: str) -> dict[str, Any]:
    """A message without what may differ."""
    message: dict[str, Any] = json.loads(text)
    for name in ("origin", "argsrepr", "kwargsrepr"):
        assert message["headers"].pop(name)
    assert message["properties"].pop("delivery_tag")
    return {**message, "body": json.loads(b64decode(message["body"]))}


def test_java_and_python_build_the_same_message(newest: Redisson) -> None:
    eta = datetime.fromtimestamp(ETA_MS / 1000, timezone.utc)
    of_java = newest.call("build", "q", {**CALL, "eta_ms": ETA_MS, "expires_ms": ETA_MS})
    assert comparable(of_java) == comparable(CeleryMessage(**CALL, eta=eta, expires=eta).to_json("q"))
    assert CeleryMessage.parse(of_java).eta == eta


def test_the_story_of_the_readme(
    class_path: Callable[[str], str], broker: PrivateRedis, broker_client: redis.Redis, broker_url: str, ledger: Ledger
) -> None:
    command = [*JVM, "-cp", class_path(NEWEST), "delayq.Shop", f"redis://127.0.0.1:{broker.port}"]
    with Worker(broker=broker_url, ledger=ledger.url, app="examples.java.shop"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (promised,) = re.findall(r"prints[^\n]*:\n\n```\n(.*?)```", EXAMPLE.joinpath("README.md").read_text(), re.DOTALL)
    ids = r"task [0-9a-f.-]+"
    assert re.sub(ids, "task ID", done.stdout) == re.sub(ids, "task ID", promised)
    assert DelayedQueue(broker_client, "celery").size() == 0


def test_the_newest_redisson_is_that_of_the_example() -> None:
    assert f"<redisson.version>{NEWEST}<" in EXAMPLE.joinpath("pom.xml").read_text()

"""Workers in the process of a test, one after the other: `start_worker`, and Celery's fixture `celery_worker`."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.on_cluster

#: Celery gives such a worker 10 s to stop, and kombu's event loop may poll for so long.
CODE = """
import sys
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_delayq import DelayQ

_, broker, backend, pool = sys.argv
app = Celery("tests", broker=broker, backend=backend)
DelayQ(app)

@app.task
def add(x, y):
    return x + y

for number in range(3):
    with start_worker(app, pool=pool, perform_ping_check=False, shutdown_timeout=8):
        for countdown in (None, 0.5):
            result = add.apply_async((number, 1), countdown=countdown)
            assert result.get(timeout=20) == number + 1
            result.forget()
"""


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_it_stops_soon_and_the_next_one_runs_delayed_tasks(broker_url: str, ledger_url: str, pool: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CODE, broker_url, ledger_url, pool]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr

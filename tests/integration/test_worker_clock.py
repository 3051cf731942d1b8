"""A worker whose clock is wrong runs tasks on time by the server's clock."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.request import Request

from celery_delayq.transfer.lead import Lead
from celery_delayq.transport.ahead import LAST_PART_S, Ahead
from celery_delayq.transport.messages import DUE_PROPERTY
from celery_delayq.worker.bootsteps import run_when_due
from tests.clocks import clock_from, has_faketime
from tests.ledger import ALL_WELL, Ledger
from tests.support import missing, wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


class Message(SimpleNamespace):
    """A kombu message can be a key, and be referred to weakly."""

    __hash__ = object.__hash__


def request_for(app: Celery, eta: datetime, *, transferred: bool = True) -> Request:
    """A worker's request for a task with an eta, which a loop has moved or not."""
    message = Message(
        headers={"id": "i", "task": "note", "eta": eta.isoformat()},
        body=b"[[], {}, {}]",
        payload=[[], {}, {}],
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={},
        properties={DUE_PROPERTY: 1} if transferred else {},
    )
    return Request(message, app=app, hostname=os.uname().nodename)


def wrong_clock(seconds: int) -> dict[str, str]:
    """Environment in which a process's clock is off by so much."""
    if not has_faketime():
        missing("needs faketime (libfaketime)")
    return clock_from(datetime.now(timezone.utc) + timedelta(seconds=seconds))


@pytest.mark.parametrize("seconds", [-30, 30])
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_tasks_run_on_time_by_the_servers_clock(
    app: Celery, broker_url: str, ledger: Ledger, seconds: int, pool: str
) -> None:
    with Worker(pool=pool, broker=broker_url, ledger=ledger.url, env=wrong_clock(seconds)) as worker:
        written = worker.log.split(" ready.")[0].rpartition("[")[2][:19]
        shown = datetime.fromisoformat(written).replace(tzinfo=timezone.utc).timestamp()
        assert abs(shown - time.time() - seconds) < 10, "the worker's clock is not wrong"
        due = time.time() + 1
        eta = datetime.fromtimestamp(due, timezone.utc)
        promised = {app.tasks["note"].apply_async(eta=eta).id: due * 1000 for _ in range(5)}
        wait_until(lambda: ledger.has(promised), "they ran, not 30 s later", 15)
        assert ledger.verdict(promised) == ALL_WELL


@pytest.mark.parametrize(
    ("due_in_s", "transferred", "held_s"),
    [
        (30, False, 30),  # a stock producer put it on the broker list, or the clocks are apart: Celery's business
        (None, True, 0),  # no loop in this process: by its own clock it is no lead
        (-math.inf, True, 0),  # nor one that knows the server's time
        (-1, True, 0),  # due by the server's clock
        (0.002, True, 0.002),  # came ahead by the lead: exactly the rest
        (30, True, 0),  # longer than any lead: no worker holds it
    ],
)
def test_a_worker_holds_a_transferred_message_for_the_rest_of_the_lead_at_most(
    app: Celery, due_in_s: float | None, transferred: bool, held_s: float
) -> None:
    eta = datetime.now(timezone.utc) + timedelta(seconds=30)
    request = request_for(app, eta, transferred=transferred)
    message = request.message
    asked = []

    def seconds_until_past(server_ms: float) -> float | None:
        asked.append(server_ms)
        return due_in_s

    loop = SimpleNamespace(seconds_until_past=seconds_until_past, lead=Lead(0.01)) if due_in_s is not None else None
    transport = SimpleNamespace(loop_for=lambda message: loop, ahead=Ahead())
    consumer = SimpleNamespace(connection=SimpleNamespace(transport=transport))
    before = datetime.now(timezone.utc)
    began = time.monotonic()
    run_when_due(consumer, request)
    assert request.request_dict["eta"] == eta.isoformat()
    if not transferred:
        assert request.eta == eta
    elif held_s:
        timer = timedelta(seconds=held_s - LAST_PART_S)
        assert before <= request.eta - timer <= datetime.now(timezone.utc), "all but the last part: a timer"
        time.sleep(timer.total_seconds())
        assert transport.ahead.wait(message)
        assert time.monotonic() - began >= held_s, "the last part: a sleep"
    else:
        assert request.eta is None
        assert not transport.ahead.wait(message)
    assert all(ms == eta.timestamp() * 1000 for ms in asked)


def test_a_worker_that_does_not_know_the_servers_time_yet_waits_for_the_lead_by_its_own(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it has just connected, while another worker moves messages ahead."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)  # a busy machine may let more time pass than the lead
    eta = datetime.fromtimestamp(now_s, timezone.utc) + timedelta(seconds=0.09)
    request = request_for(app, eta)
    transport = SimpleNamespace(loop_for=lambda message: None)
    consumer = SimpleNamespace(connection=SimpleNamespace(transport=transport))
    run_when_due(consumer, request)
    assert request.eta is not None
    assert request.eta >= eta - timedelta(seconds=0.01)


def test_what_is_due_at_once_takes_no_timer(app: Celery) -> None:
    loop = SimpleNamespace(seconds_until_past=lambda server_ms: LAST_PART_S / 2, lead=Lead(0.01))
    transport = SimpleNamespace(loop_for=lambda message: loop, ahead=Ahead())
    request = request_for(app, datetime.now(timezone.utc))
    began = time.monotonic()
    run_when_due(SimpleNamespace(connection=SimpleNamespace(transport=transport)), request)
    assert request.eta is None
    assert transport.ahead.wait(request.message)
    assert time.monotonic() - began >= LAST_PART_S / 2


def test_a_busy_greenlet_does_not_make_timers_end_early() -> None:
    """gevent's clock stands still while a greenlet computes."""
    code = """
import time
import gevent
from celery_delayq.worker.bootsteps import refresh_timers

gevent.sleep(0)
until = time.monotonic() + 0.05
while time.monotonic() < until:
    pass
began = time.monotonic()
refresh_timers()
gevent.sleep(0.03)
print(time.monotonic() - began)
"""
    waited = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(waited) >= 0.03

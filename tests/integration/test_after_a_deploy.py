"""What waits after a deploy is what the new code says: its arguments, its queue, its time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from celery_delayq.inspector.task import ScheduledTask
from tests.integration.planning import planning
from tests.support import wait_until
from tests.worker_app import make_app

pytestmark = [
    pytest.mark.on_cluster,
    pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning"),  # of the queue of a task
]


@pytest.fixture(autouse=True)
def empty_broker(broker_client: redis.Redis) -> None:
    """Each test has its own schedule."""
    broker_client.flushall()


class Deploys:
    """Plans an entry with one version of the code after the other."""

    def __init__(self, broker_url: str, ledger_url: str) -> None:
        self._urls = broker_url, ledger_url
        self.apps: list[Celery] = []

    def __call__(self, entry: dict[str, Any], *, task: dict[str, Any] | None = None, **conf: Any) -> ScheduledTask:
        """Return what waits when a planner of a new version has planned."""
        app = make_app(*self._urls, beat_schedule={"report": entry}, **conf)
        self.apps.append(app)
        app.task(name="report", shared=False, **(task or {}))(report)
        before = {one.id for one in app.delayq.iter_scheduled()}
        with planning(app):
            (found,) = wait_until(
                lambda: [one for one in app.delayq.iter_scheduled() if one.id not in before], "it is planned anew"
            )
            wait_until(lambda: [one.id for one in app.delayq.iter_scheduled()] == [found.id], "nothing else waits")
        assert isinstance(found, ScheduledTask)
        return found


def report(value: Any = None) -> None:
    """Do nothing."""


@pytest.fixture
def deploy(broker_url: str, ledger_url: str) -> Iterator[Deploys]:
    deploys = Deploys(broker_url, ledger_url)
    yield deploys
    for app in deploys.apps:
        app.close()


def entry(*args: Any, schedule: Any = 3600, **options: Any) -> dict[str, Any]:
    return {"task": "report", "schedule": schedule, "args": args, "options": options}


def test_new_arguments(deploy: Deploys) -> None:
    assert "1.5" in deploy(entry(Decimal("1.5"))).args_text
    assert "2.5" in deploy(entry(Decimal("2.5"))).args_text


def test_the_new_queue_of_the_task(deploy: Deploys) -> None:
    assert deploy(entry(), task={"queue": "before"}).queue == "before"
    assert deploy(entry(), task={"queue": "after"}).queue == "after"


def test_the_new_time_zone(deploy: Deploys) -> None:
    for zone in ("UTC", "Asia/Tokyo"):
        due = deploy(entry(schedule=crontab("0", "6")), timezone=zone).due
        local = due.astimezone(ZoneInfo(zone))
        assert (local.hour, local.minute) == (6, 0)
        assert due > datetime.now(timezone.utc)


def test_a_new_serializer(deploy: Deploys) -> None:
    assert deploy(entry(), task_serializer="json").content_type == "application/json"
    after = deploy(entry(), task_serializer="pickle", accept_content=["json", "pickle"])
    assert after.content_type == "application/x-python-serialize"


def test_the_same_code_leaves_what_waits(deploy: Deploys, broker_url: str, ledger_url: str) -> None:
    first = deploy(entry({Decimal("1.5"), "b"}, serializer="pickle"))
    again = make_app(
        broker_url, ledger_url, beat_schedule={"report": entry({"b", Decimal("1.5")}, serializer="pickle")}
    )
    deploy.apps.append(again)
    again.task(name="report", shared=False)(report)
    again.delayq.schedule.add("new", "report", 3600)
    with planning(again):
        wait_until(lambda: again.delayq.schedule.get("new").next_run, "it has planned")
    assert first.id in {one.id for one in again.delayq.iter_scheduled()}

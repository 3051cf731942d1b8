"""Periodic tasks with real workers, without a beat process: what runs, where, and what changes at run time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from dateutil.parser import isoparse

from celery_delayq import ConfigurationError, DelayedQueue, EntryExists, InvalidSchedule, UnknownEntry
from examples.private_redis import PrivateRedis
from tests.brokers import list_for
from tests.integration.long_tasks import in_flight
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import make_app, publisher
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.on_cluster

OURS = "celery_delayq.beat:Scheduler"

#: An entry whose runs tell for when they were planned, see `etas`.
EACH_HALF_SECOND = {"task": "note_request", "schedule": 0.5}


def conf(scheduler: str = OURS, **entries: Any) -> dict[str, Any]:
    """The configuration of an app with periodic tasks."""
    return {"beat_scheduler": scheduler, "beat_schedule": entries}


def note(schedule: Any, value: Any, **options: Any) -> dict[str, Any]:
    """An entry that writes a value into the ledger."""
    return {"task": "note", "schedule": schedule, "args": [value], "options": options}


def notes(ledger: Ledger, value: Any) -> list[float]:
    """When a value was written, in ms."""
    return [run.at_ms for run in ledger.runs() if run.note == value]


def etas(ledger: Ledger) -> list[float]:
    """For when the runs of `note_request` were planned, in the order in which they ran; unix time."""
    return [isoparse(run.note["eta"]).timestamp() for run in ledger.runs() if isinstance(run.note, dict)]


@pytest.fixture(autouse=True)
def empty_broker(broker_client: redis.Redis) -> None:
    """Each test has its own schedule."""
    broker_client.flushall()


@pytest.fixture
def planning(broker_url: str, ledger: Ledger) -> Iterator[Worker]:
    """A worker that plans, with nothing in its configuration."""
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf()) as worker:
        yield worker


class TestConfigured:
    @pytest.mark.parametrize("scheduler", [OURS, "delayq"])
    def test_a_worker_needs_no_beat(self, broker_url: str, ledger: Ledger, scheduler: str) -> None:
        configured = conf(scheduler, a=EACH_HALF_SECOND, b=note(0.5, "b", countdown=0.2, priority=3))
        with Worker(broker=broker_url, ledger=ledger.url, conf=configured):
            wait_until(lambda: len(etas(ledger)) >= 4 and len(notes(ledger, "b")) >= 3, "both ran")
        first, *later = etas(ledger)
        assert [eta - first for eta in later] == pytest.approx([0.5 * n for n in range(1, len(later) + 1)])

    @pytest.mark.parametrize("pool", ["prefork", "gevent", "threads"])
    def test_with_every_pool(self, broker_url: str, ledger: Ledger, pool: str) -> None:
        with Worker(broker=broker_url, ledger=ledger.url, pool=pool, conf=conf(a=note(0.5, "a"))):
            wait_until(lambda: len(notes(ledger, "a")) >= 4, "it runs")

    def test_with_protocol_1_of_celery(self, broker_url: str, ledger: Ledger) -> None:
        options = {"task_protocol": 1, **conf(a=EACH_HALF_SECOND)}
        with Worker(broker=broker_url, ledger=ledger.url, conf=options):
            wait_until(lambda: len(etas(ledger)) >= 4, "it runs")
        assert len(set(etas(ledger))) == len(etas(ledger))

    @pytest.mark.thorough
    def test_after_an_outage_of_everything_a_task_runs_once_late(
        self, broker_url: str, broker_client: redis.Redis, ledger: Ledger
    ) -> None:
        """The worker plans before it transfers: so it sees what still waits."""
        entry = {"task": "note_request", "schedule": 1}
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf(a=entry)) as worker:
            wait_until(lambda: len(ledger.runs()) >= 2, "it runs")
            worker.suspend()
            while in_flight(broker_client):  # what is not acknowledged would run again
                worker.resume()
                worker.suspend()
            worker.kill()
        last_run = max(etas(ledger))
        wait_until(lambda: time.time() > last_run + 5, "several occurrences are missed")
        restarted = time.time()
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf(a=entry)):
            wait_until(lambda: max(run.at_ms for run in ledger.runs()) > (restarted + 4) * 1000, "it runs again", 20)
        assert len(set(etas(ledger))) == len(etas(ledger))
        # What was due in the 2 s before a planner came is merely late.
        assert len([eta for eta in etas(ledger) if last_run < eta < restarted - 2]) == 1

    def test_two_workers_and_a_beat_run_each_once(self, broker_url: str, ledger: Ledger) -> None:
        where = {"broker": broker_url, "ledger": ledger.url, "conf": conf(a=EACH_HALF_SECOND)}
        with Worker(**where), Worker(**where), CeleryCommand("beat", "-s", "/nowhere", "--max-interval=2", **where):  # type: ignore[arg-type]
            start = len(etas(ledger))
            wait_until(lambda: len(etas(ledger)) >= start + 8, "it runs")
        assert len(set(etas(ledger))) == len(etas(ledger))

    def test_without_the_setting_workers_leave_the_schedule_alone(
        self, app: Celery, broker_url: str, ledger: Ledger, broker_client: redis.Redis
    ) -> None:
        with Worker(broker=broker_url, ledger=ledger.url, conf={"beat_schedule": {"a": note(0.1, "a")}}):
            # Five occurrences after the worker was ready.
            app.tasks["note"].apply_async(("last",), countdown=0.5)
            wait_until(lambda: notes(ledger, "last"), "the worker works")
        assert not notes(ledger, "a")
        assert not broker_client.exists("delayq:schedule")

    def test_what_was_planned_runs_without_any_planner(
        self, broker_url: str, waiting: DelayedQueue, ledger: Ledger
    ) -> None:
        where = {"broker": broker_url, "ledger": ledger.url}
        with Worker(**where, conf=conf(a=note(3, "a"))):  # type: ignore[arg-type]
            wait_until(lambda: waiting.size() == 1, "it is planned")
        with Worker(**where):  # type: ignore[arg-type]
            wait_until(lambda: len(notes(ledger, "a")) == 1, "it ran")

    def test_a_message_is_as_beat_sends_it(
        self, app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
    ) -> None:
        entry = note(3600, "a", headers={"mine": 1}, expires=60, queue="special", priority=6)
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf(a=entry)):
            shown = wait_until(lambda: next((it for it in app.delayq.schedule if it.next_run), None), "it is planned")
        assert shown.queue == list_for(broker_client, "special", 6)
        with app.connection_for_write() as connection:
            (waiting,) = connection.default_channel.delayed_queue(shown.queue).peek()
        headers = json.loads(waiting.payload)["headers"]
        assert headers["celery_beat_task"] is True
        assert headers["mine"] == 1
        expires, eta = (headers[name] for name in ("expires", "eta"))
        assert expires > eta > shown.next_run.isoformat()[:19]
        assert waiting.score == round(shown.next_run.timestamp() * 1000)


class TestBeat:
    def test_logs_what_it_sends_and_plans_alone(self, broker_url: str, ledger: Ledger) -> None:
        where = {"broker": broker_url, "ledger": ledger.url, "conf": conf(a=note(0.5, "a"))}
        with CeleryCommand("beat", "--loglevel=INFO", **where) as beat:  # type: ignore[arg-type]
            beat.wait_for_log("Scheduler: Sending due task a (note)", 2)
            assert "celery_delayq.beat.Scheduler" in beat.log
            beat.send_signal(15)
            assert beat.wait() == 0

    @pytest.mark.parametrize("ours", [True, False])
    def test_with_another_scheduler_warns_if_workers_plan_too(
        self, broker_url: str, ledger: Ledger, ours: bool
    ) -> None:
        """Such as that of django-celery-beat: it sends what `beat_schedule` has, too."""
        another = "celery.beat:Scheduler"
        configured = conf(OURS if ours else another, a=note(3600, "a"))
        where = {"broker": broker_url, "ledger": ledger.url, "conf": configured}
        with CeleryCommand("beat", "-S", another, "--loglevel=DEBUG", **where) as beat:  # type: ignore[arg-type]
            beat.wait_for_log("beat: Waking up")
            assert ("Each entry of beat_schedule runs twice" in beat.log) is ours

    def test_in_a_worker(self, broker_url: str, ledger: Ledger) -> None:
        with Worker("-B", broker=broker_url, ledger=ledger.url, conf=conf(a=note(0.5, "a"))):
            wait_until(lambda: len(notes(ledger, "a")) >= 4, "it runs")
        times = notes(ledger, "a")
        slots = [round((at - times[0]) / 500) for at in times]
        assert len(set(slots)) == len(slots)

    @pytest.mark.one_server("it is about one")
    def test_needs_our_broker(self, broker_server: PrivateRedis, ledger: Ledger) -> None:
        with publisher(broker_server.url, ledger.url, beat_scheduler=OURS) as stock:
            scheduler = stock.Beat(quiet=True).Service(stock, scheduler_cls=OURS).scheduler
            with pytest.raises(ConfigurationError, match="needs a delayq:// broker"):
                scheduler.tick()


@pytest.mark.usefixtures("planning")
class TestAtRunTime:
    def test_an_entry_runs_as_soon_as_it_is_added(self, app: Celery, ledger: Ledger) -> None:
        app.delayq.schedule.add("mine", app.tasks["note"], 0.3, ["added"])
        wait_until(lambda: len(notes(ledger, "added")) >= 3, "it runs")
        # An occurrence is counted after it was put into its queue.
        wait_until(lambda: app.delayq.schedule.get("mine").runs >= 3, "its runs are counted")
        shown = app.delayq.schedule["mine"]
        assert len(app.delayq.schedule) == 1
        assert shown.last_run is not None
        assert shown.next_run is not None
        assert shown.error is None

    def test_an_update_takes_effect_at_once(self, app: Celery, ledger: Ledger) -> None:
        schedule = app.delayq.schedule
        schedule.add("mine", "note", 3600, ["old"])
        wait_until(lambda: schedule.get("mine").next_run, "it is planned")
        schedule.update("mine", schedule=0.2, args=["new"])
        wait_until(lambda: notes(ledger, "new"), "it runs", 2)
        assert not notes(ledger, "old")

    def test_removed_and_paused_entries_leave_nothing(self, app: Celery, broker_client: redis.Redis) -> None:
        schedule = app.delayq.schedule
        for name in ("removed", "paused"):
            schedule.add(name, "note", 3600)
        wait_until(lambda: broker_client.zcard("redisson_delay_queue_timeout:{celery}") == 2, "both are planned")
        schedule.remove("removed")
        assert schedule.pause("paused").next_run is None
        assert broker_client.zcard("redisson_delay_queue_timeout:{celery}") == 0
        assert [entry.name for entry in schedule] == ["paused"]
        schedule.resume("paused")
        wait_until(lambda: schedule.get("paused").next_run, "it is planned again", 2)

    def test_run_now_runs_now_and_on_time(self, app: Celery, ledger: Ledger) -> None:
        schedule = app.delayq.schedule
        schedule.add("mine", "note", 3600, ["now"])
        planned = wait_until(lambda: schedule.get("mine").next_run, "it is planned")
        assert schedule.run_now("mine").get(timeout=10) == "now"
        assert schedule.get("mine").next_run == planned

    def test_a_task_that_nobody_has_does_not_stop_others(self, app: Celery, ledger: Ledger) -> None:
        app.delayq.schedule.add("odd", "no.such.task", 3600)
        app.delayq.schedule.add("mine", "note", 0.3, ["fine"])
        wait_until(lambda: notes(ledger, "fine"), "it runs")
        assert [entry.is_registered for entry in app.delayq.schedule] == [True, False]

    def test_it_ends_after_so_many_runs(self, app: Celery, ledger: Ledger) -> None:
        app.delayq.schedule.add("mine", "note", 0.1, ["few"], max_runs=3)
        wait_until(lambda: len(notes(ledger, "few")) == 3, "it ran")
        wait_until(lambda: app.delayq.schedule.get("mine").runs == 3, "it ended")
        assert app.delayq.schedule.get("mine").next_run is None


class TestWithoutPlanner:
    """Whatever process changes the schedule, it needs no planner to say what is wrong."""

    def test_removing_withdraws(self, app: Celery, broker_url: str, ledger: Ledger, broker_client: redis.Redis) -> None:
        app.delayq.schedule.add("mine", "note", 3600)
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf()):
            wait_until(lambda: app.delayq.schedule.get("mine").next_run, "it is planned")
        app.delayq.schedule.remove("mine")
        assert broker_client.zcard("redisson_delay_queue_timeout:{celery}") == 0

    def test_names_are_unique(self, app: Celery) -> None:
        app.delayq.schedule.add("mine", "note", 60)
        with pytest.raises(EntryExists, match="'mine'"):
            app.delayq.schedule.add("mine", "note", 60)
        assert "mine" in app.delayq.schedule
        assert "yours" not in app.delayq.schedule

    @pytest.mark.parametrize("method", ["get", "update", "remove", "pause", "resume", "run_now"])
    def test_unknown_names(self, app: Celery, method: str) -> None:
        with pytest.raises(UnknownEntry, match="no periodic task 'yours'"):
            getattr(app.delayq.schedule, method)("yours")

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"schedule": "* * *"}, "five fields"),
            ({"schedule": "61 * * * *"}, "61"),
            ({"schedule": 0}, "more than 0"),
            ({"schedule": None}, "is not a valid schedule"),
            ({"schedule": 60, "args": [object()]}, "must be JSON types"),
            ({"schedule": 60, "tz": "Mars/Olympus"}, "time zone such as"),
            ({"schedule": 60, "max_run": 3}, "did you mean 'max_runs'"),
            ({"schedule": 60, "start": "2030-01-01T00:00:00"}, "must have a time zone"),
            ({"schedule": 60, "missed": "some"}, "skip, once, all"),
            ({"schedule": 60, "jitter": -1}, "jitter must be"),
        ],
    )
    def test_what_is_wrong_is_said_at_once(self, app: Celery, given: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidSchedule, match=f"'mine'.*{message}"):
            app.delayq.schedule.add("mine", "note", **given)
        assert "mine" not in app.delayq.schedule

    def test_the_configuration_says_what_its_entries_are(self, app: Celery, broker_url: str, ledger: Ledger) -> None:
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf(a=note(3600, "a"))):
            wait_until(lambda: "a" in app.delayq.schedule, "the entry")
        for change in (app.delayq.schedule.remove, app.delayq.schedule.update):
            with pytest.raises(EntryExists, match="in the configuration of app 'tests'"):
                change("a")
        assert app.delayq.schedule.pause("a").paused

    @pytest.mark.one_server("it is about one")
    def test_another_broker_is_refused(self, broker_server: PrivateRedis, ledger: Ledger) -> None:
        stock = make_app(broker_server.url, ledger.url)
        with pytest.raises(ConfigurationError, match="delayq://"):
            list(stock.delayq.schedule)
        stock.close()

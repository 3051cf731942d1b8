"""Celery bootsteps: start and stop the transfer loop and the planner, and configure the transport of a worker."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
from celery import bootsteps, signals
from celery.utils.log import get_logger
from kombu.asynchronous import get_event_loop, set_event_loop

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.finding import sentence
from celery_delayq.basics.times import to_datetime
from celery_delayq.health.at_start import say_at_start
from celery_delayq.options.scheduler import is_ours
from celery_delayq.queue.connections import name_process
from celery_delayq.schedule.service import planner_loop
from celery_delayq.transport import Transport
from celery_delayq.transport.ahead import LAST_PART_S, LONGEST_AHEAD_S
from celery_delayq.transport.eta import seconds_until
from celery_delayq.transport.keyed import THROTTLE_PROPERTY
from celery_delayq.transport.messages import DUE_PROPERTY
from celery_delayq.transport.urls import what_to_write
from celery_delayq.worker import commands
from celery_delayq.worker.handover import is_stopping
from celery_delayq.worker.lateness import note_clock, trace_lateness
from celery_delayq.worker.program import program_of
from celery_delayq.worker.received import remember_eta, tell_eta
from celery_delayq.worker.reconnect import reconnect_soon, reconnect_when_refused
from celery_delayq.worker.rights import name_missing_rights

logger = get_logger(__name__)


class Plan(bootsteps.StartStopStep):
    """Plans periodic tasks while the worker consumes, if `beat_scheduler` is ours.

    The transfer waits for the planner. After an outage of all workers or of Redis, the planner has to see what nobody
    has transferred yet, so that a missed occurrence runs once and not twice. The worker itself does not wait.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        commands.register()
        name_process(consumer.hostname)
        self.enabled = is_ours(consumer.app)  # Celery asks for it
        self._program = program_of(consumer)
        self._was_started = False
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        """Start planning."""
        transport = consumer.connection.transport
        if not isinstance(transport, Transport):
            effect = "Periodic tasks do not run: celery_delayq's scheduler needs a delayq:// broker, but %s. %s"
            logger.error(effect, *_what_to_write(consumer))
            return
        counting = self._program.counting
        planner = self._program.planner = planner_loop(
            consumer.app,
            on_missed=None if counting is None else counting.recorder.on_missed,
            is_back=self._was_started,
        )
        self._was_started = True
        planner.start()

    def stop(self, consumer: Any) -> None:
        """Stop planning; occurrences that are already planned still run."""
        planner, self._program.planner = self._program.planner, None
        if planner is not None:
            planner.stop()


class Transfer(bootsteps.StartStopStep):
    """Transfers due messages while the worker consumes.

    It is a consumer step, so it starts again with every connection. So the loop serves the server that the worker
    consumes from, even after a failover to another URL.
    """

    requires = ("celery.worker.consumer.tasks:Tasks", Plan)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        self._program = program_of(consumer)
        self._server_checked = False
        #: What is known of servers from earlier connections.
        self._moments: dict[str, Any] = {}
        self._program.handover.acknowledge_at_end(consumer)
        signals.task_received.connect(run_when_due, dispatch_uid="celery_delayq.run_when_due")
        tell_eta(consumer.app)
        trace_lateness()
        reconnect_soon(consumer)
        reconnect_when_refused(consumer)
        name_missing_rights(consumer)
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        """Start the loop.

        Raises:
            UnsupportedServer: the server is too old; the worker ends with that message.
            ConfigurationError: the worker's pool is eventlet's; the same.
        """
        transport = consumer.connection.transport
        if not isinstance(transport, Transport):
            effect = "DelayQ(app) has no effect: %s, so countdown tasks wait in the memory of workers. %s"
            logger.warning(effect, *_what_to_write(consumer))
            return
        if type(consumer.pool).__module__ == "celery.concurrency.eventlet":
            raise ConfigurationError("the pool eventlet is not supported: start the worker with -P gevent")
        if not self._server_checked:
            say_at_start(logger, consumer.app, consumer.connection.default_channel)
            self._server_checked = True
        transport.program = self._program
        if "visibility_timeout" in consumer.connection.transport_options:
            logger.info(
                "Leases of %g s, which running workers renew, replace visibility_timeout: it only applies to messages "
                "that workers with kombu's own transport left behind.",
                transport.options["lease"],
            )
        self._program.attach(consumer.connection)
        transport.loops.start(self._program.settings.transfer, self._moments)

    def stop(self, consumer: Any) -> None:
        """Stop the loop; other loops take over at once."""
        if is_stopping():
            self._program.handover.take_back()
        transport = getattr(consumer.connection, "transport", None)
        if isinstance(transport, Transport):
            transport.loops.stop()

    def shutdown(self, consumer: Any) -> None:
        """Write what is left; the pool has ended, too."""
        self._program.finish()
        if kombu.VERSION < (5, 7) and get_event_loop() is consumer.hub:
            set_event_loop(None)  # the next worker of this process would wait for timers that its event loop ignores


def _what_to_write(consumer: Any) -> tuple[str, str]:
    """Return what is wrong with the broker URL, and in a sentence what to do."""
    what, advice = what_to_write(consumer.app, consumer.connection, "the broker URL")
    return what, sentence(advice)


def run_when_due(sender: Any, request: Any, **kwargs: Any) -> None:
    """Make a worker run a message from a delayed queue when it is due by the server's clock, not by its own.

    A message comes before its eta by the transfer's lead at most. The worker waits for the rest: a timer for most of
    it, and `Ahead` for the last part. A worker with a wrong clock neither runs it early nor holds it. The task still
    finds its eta in `self.request.eta`, and monitors find it in the event (`received.py`). The loop learns how early or
    late the message came.

    Uses a private attribute of Celery (5.6 and 5.7): `Request._eta`, because the worker's strategy decides by the
    read-only property `eta`. `task_received` is sent just before that.
    """
    eta = _eta_of(request)
    if eta is None:
        return
    remember_eta(sender, request, eta)
    due_ms = eta.timestamp() * 1000
    request._eta = None
    transport = sender.connection.transport
    loop_for, ahead = getattr(transport, "loop_for", None), getattr(transport, "ahead", None)
    loop = loop_for(request.message) if loop_for is not None else None
    early_s = seconds_until(due_ms, loop, getattr(getattr(transport, "loops", None), "all", ()))
    note_clock(request, due_ms, early_s)
    if loop is not None:
        loop.lead.arrived(due_ms, early_s)
    if not 0 < early_s <= LONGEST_AHEAD_S:
        return
    if ahead is not None:
        ahead.hold(request.message, early_s)
        early_s -= LAST_PART_S
    if early_s > 0:
        refresh_timers()
        request._eta = datetime.now(timezone.utc) + timedelta(seconds=early_s)


def _eta_of(request: Any) -> datetime | None:
    """Return when a message from a delayed queue is due; None if it comes from none, or is due at once."""
    properties = request.message.properties or {}
    due_ms = properties.get(DUE_PROPERTY)
    if THROTTLE_PROPERTY in properties and type(due_ms) is int:  # it got its turn after its eta was written
        return to_datetime(due_ms)
    eta: datetime | None = None if due_ms is None else request.eta
    return eta


def refresh_timers() -> None:
    """Make gevent's timers count from now, if gevent is used.

    They count from gevent's last look at the clock, which may be before other greenlets computed. So a short timer may
    end early, and with it the wait for a task's eta.
    """
    gevent: Any = sys.modules.get("gevent")
    if gevent is not None:
        gevent.get_hub().loop.update_now()

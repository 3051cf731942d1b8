"""Remote control commands of a worker: Celery's own commands, extended to waiting tasks, and `inspect delayed`.

Celery has one table of commands per process. An app with another broker still gets Celery's own replies from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from heapq import merge
from itertools import chain, islice
from typing import Any

from celery.utils.log import get_logger
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker.control import Panel
from celery.worker.request import Request

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.basics.times import to_datetime
from celery_delayq.options.settings import settings_of
from celery_delayq.publishing.broadcast import BY_ID, revoke_waiting
from celery_delayq.queue.entry import Entry
from celery_delayq.transport import Transport
from celery_delayq.transport.eta import eta_ms_of
from celery_delayq.transport.messages import body_of, decode_task

logger = get_logger(__name__)

#: Fields in Celery's reply about a task that a worker holds until its eta; they describe the timer, not the message.
#: Source: Celery 5.7 `celery.worker.strategy.default`.
_TIMER_PRIORITY = 6


def register() -> None:
    """Add the commands to Celery's table, for workers and for `celery inspect`. A second call does nothing."""
    if "delayed" in Panel.meta:
        return
    for name in BY_ID:
        Panel.data[name] = _revoking(name, Panel.data[name])
    Panel.data["scheduled"] = Panel.data["dump_schedule"] = _with_waiting(Panel.data["scheduled"])
    Panel.register(delayed, type="inspect")


def _revoking(name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def revoke(state: Any, *args: Any, **arguments: Any) -> Any:
        # Usually the sender of the command has removed the task. But a sender without DelayQ(app) has not, and a retry
        # may have scheduled the task again.
        channel = _channel(state)
        if channel is not None:
            try:
                revoke_waiting(state.app, channel, name, arguments, state.consumer.event_dispatcher)
            except Exception:
                logger.exception("Cannot revoke waiting tasks: %s", arguments.get("task_id"))
        return command(state, *args, **arguments)

    return revoke


def _with_waiting(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def scheduled(state: Any, *args: Any, **kwargs: Any) -> Any:
        held = _with_own_eta(state, command(state, *args, **kwargs))
        channel = _channel(state)
        if channel is None:
            return held
        try:
            queues = [channel.delayed_queue(name) for names in _lists(state, channel).values() for name in names]
            entries = [chain.from_iterable(queue.pages()) for queue in queues]
            waiting = merge(*entries, key=lambda entry: entry.score)
            messages = ((entry, decode_task(entry.payload)) for entry in waiting)
            shown = (_info(state, entry, message) for entry, message in messages if message is not None)
            return [*held, *islice(shown, settings_of(state.app).inspect_limit)]
        except Exception:
            logger.exception("Cannot list waiting tasks")
            return held

    return scheduled


def _with_own_eta(state: Any, held: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks that the worker holds, with the etas of their headers.

    A task that the worker holds for the rest of the transfer's lead has a different eta, by the worker's clock; see
    `run_when_due`.
    """
    arguments = (waiting.entry.args for waiting in list(state.consumer.timer.schedule.queue))
    requests = [found[0] for found in arguments if found and isinstance(found[0], Request)]
    etas = {(it.id, it.eta.isoformat()): it.request_dict.get("eta") for it in requests if it.eta}
    for shown in held:
        eta = etas.get((shown["request"]["id"], shown["eta"]))
        if eta:
            shown["eta"] = _eta(state.app, eta)
    return held


def _eta(app: Any, eta: Any) -> str:
    """Return the eta of a header as Celery shows it. Without a UTC offset, it is in the app's time zone."""
    return str(maybe_make_aware(maybe_iso8601(eta), app.conf.timezone).isoformat())


def delayed(state: Any, **kwargs: Any) -> Any:
    """Count the tasks that wait for the worker's queues, and show when the next one is due."""
    channel = _channel(state)
    if channel is None:
        return {}
    found = {}
    for queue, names in _lists(state, channel).items():
        queues = [channel.delayed_queue(name) for name in names]
        heads = [entry.score for queue in queues for entry in queue.peek()]
        found[queue] = {
            "delayed": sum(queue.size() for queue in queues),
            "next_due": to_datetime(min(heads)).isoformat() if heads else None,
        }
    return found


def _channel(state: Any) -> Any:
    """Return a channel to the worker's broker, or None if the worker does not use our transport."""
    connection = state.consumer.connection
    if connection is None or not isinstance(connection.transport, Transport):
        return None
    return connection.default_channel


def _lists(state: Any, channel: Any) -> dict[str, list[str]]:
    """Return the queues of the worker, each with its broker lists."""
    consumer = state.consumer.task_consumer
    return {queue.name: channel.broker_lists(queue.name) for queue in (consumer.queues if consumer else ())}


def _info(state: Any, entry: Entry, message: dict[str, Any]) -> dict[str, Any]:
    """Return a waiting task in the shape of Celery 5.7 `celery.worker.control.scheduled` and `Request.info`."""
    headers, properties = message["headers"], message["properties"]
    try:
        args, kwargs, _ = body_of(message, {"application/json"})
    except Exception:  # for example a pickled body, which only workers may decode
        args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
    delivery_info = properties.get("delivery_info")
    delivery_info = delivery_info if isinstance(delivery_info, dict) else {}
    priority = properties.get("priority")
    try:
        is_due_then = eta_ms_of(message) == entry.score
    except InvalidEta:
        is_due_then = False
    return {
        "eta": _eta(state.app, headers["eta"]) if is_due_then else to_datetime(entry.score).isoformat(),
        "priority": _TIMER_PRIORITY,
        "request": {
            "id": headers["id"],
            "name": headers.get("shadow") or headers["task"],
            "args": args,
            "kwargs": kwargs,
            "type": headers["task"],
            "hostname": state.hostname,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": delivery_info.get("exchange"),
                "routing_key": delivery_info.get("routing_key"),
                "priority": priority,
                "redelivered": bool(delivery_info.get("redelivered")),
            },
            "worker_pid": None,
        },
    }

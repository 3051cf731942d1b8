"""Revoke tasks that wait: remove them from Redis, and tell everybody, as a worker does with a task it was sent.

The order: they are removed, a thousand at most, then recorded as REVOKED, then the `task-revoked` events and the
`task_revoked` signals follow. A task is removed at most once, and whoever removed it announces it: so a producer and
workers that are told the same announce it once. What cannot be recorded is logged as an error; the task is revoked all
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from logging import getLogger
from typing import Any

from celery import signals
from celery.utils.functional import maybe_list
from celery.utils.nodenames import gethostname, nodename
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.entry import Entry
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.task_message import request_of, task_message

logger = getLogger(__name__)

#: Fields of the event and arguments of the signal, as of a task that a worker was sent and did not begin.
_NOT_BEGUN = {"terminated": False, "signum": None, "expired": False}

#: So many tasks are removed before they are announced.
ANNOUNCED_AT_ONCE = 1000

Stamps = Mapping[str, Any]


def revoke_ids(app: Any, channel: Any, task_ids: Iterable[str], *, eventer: Any = None) -> int:
    """Revoke the tasks with these ids that wait, in all delayed queues of the server.

    Atomic for each task against a transfer: it is removed, or delivered. One round trip for 500 ids, three a task.

    Args:
        app: the Celery app.
        channel: a channel of ours.
        task_ids: which.
        eventer: the worker's event dispatcher; by default one is made, and whoever listens hears of it.

    Returns:
        How many tasks were removed.

    Raises:
        kombu.exceptions.OperationalError: the server refused a queue; all others were searched.
        redis.RedisError: the connection was lost; what was removed before is announced.
    """
    ids = [task_id for task_id in task_ids if isinstance(task_id, str)]
    holders, refused = BrokerLists(channel, app.amqp.queues).holding(ids)
    taken = [_take_ids(queue, [task_id]) for task_id, queues in holders.items() for queue in queues]
    return _revoke(app, taken, refused, eventer)


def revoke_stamped(app: Any, channel: Any, stamps: Stamps, *, eventer: Any = None) -> int:
    """Revoke the tasks that wait with one of these stamps; all else is as with `revoke_ids`.

    Reads everything that waits, a page at a time; no body is decoded but of what is removed.

    `stamps` has for each header a value, or several; one that matches is enough, as for a worker.
    """
    lists = BrokerLists(channel, app.amqp.queues)
    return _revoke(app, [_take_stamped(lists.delayed_queue(found), stamps) for found in lists.all()], None, eventer)


def _revoke(app: Any, taken: Iterable[Iterator[Entry]], refused: ResponseError | None, eventer: Any) -> int:
    announcer = _Announcer(app, eventer)
    try:
        for entries in taken:
            try:
                for entry in entries:
                    announcer.add(entry)
            except ResponseError as exc:
                refused = exc
    finally:
        announcer.flush()
    if refused is not None:
        raise OperationalError(f"a queue was not searched: {refused}") from refused
    return announcer.count


def _take_ids(queue: DelayedQueue, task_ids: Iterable[str]) -> Iterator[Entry]:
    for task_id in task_ids:
        # Again if it was rescheduled in between, or has more entries than one call finds.
        while entries := queue.find(task_id):
            yield from _take(queue, entries)


def _take(queue: DelayedQueue, entries: Sequence[Entry]) -> Iterator[Entry]:
    # A hundred at most, so that it is one script: of two, the second could fail.
    for entry, removed in zip(entries, queue.remove(entries), strict=True):
        if removed:
            yield entry


def _take_stamped(queue: DelayedQueue, stamps: Stamps) -> Iterator[Entry]:
    for page in queue.pages():
        found = {entry: headers["id"] for entry in page if (headers := _headers(entry)) and _matches(headers, stamps)}
        removed = set()
        for entry in _take(queue, list(found)):
            removed.add(entry)
            yield entry
        # Transferred, or rescheduled in between.
        yield from _take_ids(queue, [task_id for entry, task_id in found.items() if entry not in removed])


def _headers(entry: Entry) -> dict[str, Any]:
    message = task_message(entry.payload)
    return message["headers"] if message is not None else {}


def _matches(headers: dict[str, Any], stamps: Stamps) -> bool:
    """Return whether a task has one of the stamps. Source: Celery 5.7 `celery.worker.request.Request.revoked`."""
    own, names = headers.get("stamps"), headers.get("stamped_headers")
    if not isinstance(own, dict) or not isinstance(names, list):
        return False
    return any(
        value in (maybe_list(stamps[header]) or ())
        for header in names
        if isinstance(header, str) and header in stamps
        for value in maybe_list(own.get(header)) or ()
    )


class _Announcer:
    """Does with revoked tasks what a worker does. Never raises.

    Source: Celery 5.7 `celery.worker.request.Request._announce_revoked`.

    Attributes:
        count: how many tasks were revoked.
    """

    def __init__(self, app: Any, eventer: Any) -> None:
        self.count = 0
        self._app = app
        self._eventer = eventer
        self._messages: dict[str, dict[str, Any]] = {}
        #: Backends that failed: each attempt takes as long as their retry policy says.
        self._away: set[int] = set()

    def add(self, entry: Entry) -> None:
        """Announce that an entry was removed, at the latest when `flush` is called; what is no task is left out."""
        message = task_message(entry.payload)
        if message is not None:
            self._messages[message["headers"]["id"]] = message
        if len(self._messages) >= ANNOUNCED_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Announce what was not yet."""
        if not self._messages:
            return
        requests = [request_of(self._app, message) for message in self._messages.values()]
        self._messages.clear()
        self.count += len(requests)
        revoked = [(self._app.tasks.get(request.task), request) for request in requests]
        for task, request in revoked:
            logger.info("Revoked task %s[%s], which was waiting", request.task, request.id)
            self._record(task, request)
        try:
            _send_events(self._app, revoked, self._eventer)
        except Exception:
            logger.exception("Cannot send the task-revoked events of %s", [request.id for request in requests])
        for task, request in revoked:
            signals.task_revoked.send(sender=task or request.task, request=request, **_NOT_BEGUN)

    def _record(self, task: Any, request: Any) -> None:
        backend = task.backend if task is not None else self._app.backend
        if id(backend) in self._away:
            logger.error("Task %s was revoked, but that could not be stored either", request.id)
            return
        try:
            store = _stores_errors(self._app, task, request)
            backend.mark_as_revoked(request.id, "revoked", request=request, store_result=store)
        except Exception as exc:
            if not isinstance(exc, (TypeError, ValueError, LookupError, AttributeError)):  # that is about this task
                self._away.add(id(backend))
            logger.exception("Task %s was revoked, but that could not be stored in the result backend", request.id)


def _stores_errors(app: Any, task: Any, request: Any) -> bool:
    ignored = request.ignore_result
    if ignored is None:
        ignored = task.ignore_result if task is not None else app.conf.task_ignore_result
    if task is not None:
        return not ignored or bool(task.store_errors_even_if_ignored)
    return not ignored or bool(app.conf.task_store_errors_even_if_ignored)


def _send_events(app: Any, revoked: Sequence[tuple[Any, Any]], eventer: Any) -> None:
    with ExitStack() as stack:
        if eventer is None:
            # Nobody knows here whether workers send events; what nobody listens to costs nothing. The name is the same
            # for all processes of a host, since monitors take it for that of a worker.
            hostname = nodename("delayq", gethostname())
            eventer = stack.enter_context(app.events.default_dispatcher(hostname=hostname))
        for task, request in revoked:
            if eventer.enabled and getattr(task, "send_events", True):
                eventer.send("task-revoked", uuid=request.id, **_NOT_BEGUN)

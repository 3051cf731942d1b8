"""Revoke waiting tasks: remove them from Redis, and announce it as a worker does for a task that it received.

The order is: remove up to a thousand tasks, store their state REVOKED, then send the `task-revoked` events and the
`task_revoked` signals. A task is removed at most once, and the process that removed it announces it. So a task is
announced once, even if a producer and several workers get the same command. If the state cannot be stored, that is
logged as an error; the task is revoked anyway. The same if the process dies in between: the result then stays PENDING,
unless a worker of Celery 5.7 gets the command, which stores REVOKED, too.
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

from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from celery_delayq.transport.messages import decode_task, request_of

logger = getLogger(__name__)

#: Fields of the event and arguments of the signal, as for a task that a worker received but did not start.
_NOT_BEGUN = {"terminated": False, "signum": None, "expired": False}

#: Maximum number of tasks that are removed before they are announced.
ANNOUNCED_AT_ONCE = 1000

Stamps = Mapping[str, Any]


def revoke_ids(app: Any, channel: Any, task_ids: Iterable[str], *, eventer: Any = None) -> None:
    """Revoke waiting tasks by their ids, in all delayed queues of the server.

    Atomic for each task with regard to the transfer: the task is either removed or delivered. Takes one round trip for
    500 ids, and three per task.

    Args:
        app: the Celery app.
        channel: a channel of our transport.
        task_ids: ids of the tasks.
        eventer: the worker's event dispatcher; by default a new one is created.

    Raises:
        kombu.exceptions.OperationalError: the server refused a queue; all other queues were searched.
        redis.RedisError: the connection was lost; tasks that were removed before are announced.
    """
    ids = [task_id for task_id in task_ids if isinstance(task_id, str)]
    holders, refused = BrokerLists(channel, app.amqp.queues).holding(ids)
    taken = [_take_ids(queue, [task_id]) for task_id, queues in holders.items() for queue in queues]
    _revoke(app, taken, refused, eventer)


def revoke_stamped(app: Any, channel: Any, stamps: Stamps, *, eventer: Any = None) -> None:
    """Revoke waiting tasks that have one of these stamps. Everything else is as for `revoke_ids`.

    Reads all waiting tasks, page by page. Only the bodies of removed tasks are decoded; pickled ones never are.

    `stamps` maps each header to one value or several. One matching value is enough, as for a worker.
    """
    lists = BrokerLists(channel, app.amqp.queues)
    _revoke(app, [_take_stamped(lists.delayed_queue(found), stamps) for found in lists.all()], None, eventer)


def _revoke(app: Any, taken: Iterable[Iterator[Entry]], refused: Exception | None, eventer: Any) -> None:
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
        raise OperationalError(f"cannot search all queues: {refused}") from refused


def _take_ids(queue: DelayedQueue, task_ids: Iterable[str]) -> Iterator[Entry]:
    for task_id in task_ids:
        # Repeat: the task may have been rescheduled in between, or may have more entries than one call finds.
        while entries := queue.find(task_id):
            yield from _take(queue, entries)


def _take(queue: DelayedQueue, entries: Sequence[Entry]) -> Iterator[Entry]:
    # A hundred at most, so that one script is enough: of two scripts, the second could fail.
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
        # It was transferred or rescheduled in between.
        yield from _take_ids(queue, [task_id for entry, task_id in found.items() if entry not in removed])


def _headers(entry: Entry) -> dict[str, Any]:
    message = decode_task(entry.payload)
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
    """Announces revoked tasks as a worker does. Never raises.

    Source: Celery 5.7 `celery.worker.request.Request._announce_revoked`.
    """

    def __init__(self, app: Any, eventer: Any) -> None:
        self._app = app
        self._eventer = eventer
        self._messages: dict[str, dict[str, Any]] = {}
        #: Backends that failed. They are not tried again, because each attempt lasts as long as their retry policy.
        self._away: set[int] = set()

    def add(self, entry: Entry) -> None:
        """Announce that an entry was removed, now or at the next `flush`. Entries that are not tasks are skipped."""
        message = decode_task(entry.payload)
        if message is not None:
            self._messages[message["headers"]["id"]] = message
        if len(self._messages) >= ANNOUNCED_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Announce all tasks that were not announced yet."""
        if not self._messages:
            return
        requests = [request_of(self._app, message, unpickles=False) for message in self._messages.values()]
        self._messages.clear()
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
            logger.error("Task %s was revoked, but its state REVOKED could not be stored either", request.id)
            return
        try:
            store = _stores_errors(self._app, task, request)
            backend.mark_as_revoked(request.id, "revoked", request=request, store_result=store)
        except Exception as exc:
            if not isinstance(
                exc, (TypeError, ValueError, LookupError, AttributeError)
            ):  # such errors concern only this task
                self._away.add(id(backend))
            logger.exception(
                "Task %s was revoked, but its state REVOKED could not be stored in the result backend", request.id
            )


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
            # It is unknown here whether workers send events; an event without listeners costs nothing. All processes
            # of a host share one name, because monitors take it for the name of a worker.
            hostname = nodename("delayq", gethostname())
            eventer = stack.enter_context(app.events.default_dispatcher(hostname=hostname))
        for task, request in revoked:
            if eventer.enabled and getattr(task, "send_events", True):
                eventer.send("task-revoked", uuid=request.id, **_NOT_BEGUN)

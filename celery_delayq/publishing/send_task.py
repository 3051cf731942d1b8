"""Sends tasks that hold a unique key, or take turns; returns the result of the task that does the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_delayq.basics import deadline
from celery_delayq.basics.errors import ConfigurationError, KeyHeld
from celery_delayq.options.throttle import Throttle
from celery_delayq.options.unique import Unique, unique_for
from celery_delayq.publishing.naive import warn_of_naive
from celery_delayq.publishing.results import prepare_backends
from celery_delayq.queue.holds import Offered
from celery_delayq.transport import acquired, is_in_memory
from celery_delayq.transport.keyed import (
    THROTTLE_PROPERTY,
    UNIQUE_PROPERTY,
    Claiming,
    throttle_of,
    unique_of,
)

if TYPE_CHECKING:
    from celery.app.task import Context, Task
    from celery.canvas import Signature

#: Options that say over which connection a task is sent.
_WAYS = ("connection", "producer", "publisher")

#: Stands for an option that was not given; `unique=None` sends a task without a key.
_NOT_GIVEN: Any = object()


def send_unique(app: Celery) -> None:
    """Let an app understand the options `unique`, `on_conflict` and `throttle`. A second call does nothing.

    Results have `was_new` from then on, also those of eager tasks, which are not sent.
    """
    from celery.result import AsyncResult

    AsyncResult.was_new = True
    if not isinstance(app.send_task, SendTask):
        app.send_task = SendTask(app)
        prepare_backends(app)


@contextmanager
def in_time(app: Any, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give options of `apply_async` with which a task, a group or a chord is sent within the `timeout` of the call.

    A chord writes most of them into its messages.
    """
    with acquired(app) as connection:
        producer = app.amqp.Producer(connection, auto_declare=False)
        yield {**options, **dict.fromkeys(_WAYS), "producer": producer}


def key_of(app: Celery, signature: Task | Signature) -> str:
    """Return the unique key of the task of a signature; of a task, that of its signature without arguments.

    Raises:
        ValueError: it has none.
        TypeError: it is no signature.
        UnknownTask: the app does not have this task, but a similar one.
    """
    from celery.app.task import Task
    from celery.canvas import Signature

    if isinstance(signature, Task):
        signature = signature.s()
    if not isinstance(signature, Signature):
        raise TypeError(f"a unique key must be given by its text, or by the signature of a task, not by {signature!r}")
    task = app.tasks.get(signature.task)
    default = _default_of(task)
    given = signature.options.get("unique", default)
    if given is None:
        from celery_delayq.transport.named import check_known  # which a producer does not need otherwise

        check_known(app, signature.task)
        raise ValueError(f"task {signature.task} is not unique: give its key, or the option `unique`")
    unique = unique_for(given, default)
    return unique.key_of(signature.task, getattr(task, "run", None), signature.args, signature.kwargs)


def _default_of(task: Any) -> Unique | None:
    """Return the `unique` of a task's decorator, which may be a key; what is none of ours is none."""
    given = getattr(task, "unique", None)
    if isinstance(given, str):
        return Unique(key=given)
    return given if isinstance(given, Unique) else None


def _throttle_of(task: Any) -> Throttle | None:
    """Return the `throttle` of a task's decorator; what is none of ours is none."""
    given = getattr(task, "throttle", None)
    return given if isinstance(given, Throttle) else None


def _properties(request: Context, name: str) -> Any:
    """Return a property of the message of a request; None if it has none."""
    return (request.get("properties") or {}).get(name)


class SendTask:
    """`Celery.send_task`, by which every task is sent, with three more options: `unique`, `on_conflict`, `throttle`.

    Without them, and for tasks that have neither, it only calls Celery's.

    Source: Celery 5.7 `Celery.send_task` and `Task.apply_async`.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        #: What somebody else has put in the place of the app's method before.
        self._others = vars(app).get("send_task")

    @property
    def of_celery(self) -> Any:
        """The method that it replaces. Whoever wraps that of the class later is asked, too."""
        return self._others or MethodType(type(self._app).send_task, self._app)

    def __call__(self, name: str, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        """Send a task; see Celery, `Unique` and `Throttle`.

        Returns:
            The result. `result.was_new` says whether the task was sent; if not, the result is that of the task that
            holds its key.

        Raises:
            TypeError: an option has the wrong type, or `on_conflict` is given without a key.
            ValueError: an option is wrong.
            ConfigurationError: the broker is not ours.
            KeyHeld: another task holds the key, and `on_conflict` is "raise".
        """
        if deadline.is_set():
            if not any(map(options.get, _WAYS)):
                with in_time(self._app, options) as bounded:
                    return self(name, args, kwargs, *positional, **bounded)
            policy = options.get("retry_policy") or {}
            options["retry_policy"] = {"errback": deadline.raise_rather_than_wait, **policy}
        warn_of_naive(options.get("eta"), self._app)
        task = options.get("task_type") or self._task_of(name)
        retrying = self._retrying(options)
        throttle = options.pop("throttle", _NOT_GIVEN)
        if throttle is _NOT_GIVEN:
            throttle = _throttle_of(task) if retrying is None else throttle_of(_properties(retrying, THROTTLE_PROPERTY))
        if throttle is not None:
            if not isinstance(throttle, Throttle):
                raise TypeError(f"throttle must be Throttle(...), or None for none, not {throttle!r}")
            turns = throttle.key_of(name, getattr(task, "run", None), args, kwargs)
            options[THROTTLE_PROPERTY] = {"key": turns, "rate": throttle.rate}
        given = options.pop("unique", _NOT_GIVEN)
        on_conflict = options.pop("on_conflict", None)
        default = _default_of(task)
        if given is _NOT_GIVEN:
            given = default if retrying is None else unique_of(_properties(retrying, UNIQUE_PROPERTY))
        if given is None:
            if on_conflict is not None:
                raise TypeError(
                    f"task {name} is sent with on_conflict={on_conflict!r}, but without a unique key: give unique, too"
                )
            return self.of_celery(name, args, kwargs, *positional, **options)
        unique = unique_for(given, default)
        if on_conflict is not None:
            unique = replace(unique, on_conflict=on_conflict)
        key = unique.key_of(name, getattr(task, "run", None), args, kwargs)
        return self._send(Claiming(key, unique), retrying, name, (args, kwargs, *positional), options)

    def _task_of(self, name: str) -> Any:
        """Return the task of a name; None if the app does not know it, or only its owner may finalize it.

        It is finalized here: before that, an app knows only those of its tasks that were used.
        """
        return self._app.tasks.get(name) if self._app.finalized or self._app.autofinalize else None

    def _retrying(self, options: Mapping[str, Any]) -> Context | None:
        """Return the request of the task that sends itself again; None if this is no retry.

        Source: Celery 5.7 `Task.signature_from_request`. `Task.replace` also sends a message with its own id.
        """
        task, task_id = self._app.current_worker_task, options.get("task_id")
        if task is None or task_id is None or task.request.id != task_id:
            return None
        return task.request if (options.get("retries") or 0) > (task.request.retries or 0) else None

    def _send(
        self, claiming: Claiming, retrying: Context | None, name: str, given: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        add_to_parent = options.pop("add_to_parent", True)
        options |= {UNIQUE_PROPERTY: claiming, "add_to_parent": False}
        result = self.of_celery(name, *given, **options)
        offered = claiming.offered
        if offered is None and is_in_memory(self._app):
            offered = Offered("stored")  # in a test, where nobody keeps the key
        if offered is None:
            raise ConfigurationError(
                f"task {name} was sent without its unique key {claiming.claim.key!r}: the broker URL has to begin with "
                "delayq://"
            )
        # A task that runs again, since its worker was killed, retries again: the retry that waits stands for both.
        is_own = retrying is not None and offered.task_id == retrying.id
        was_new = offered.outcome == "stored" or is_own
        if not was_new and retrying is not None:
            held = KeyHeld(claiming.claim.key, offered.task_id)
            self._app.backend.mark_as_failure(
                retrying.id, held, request=retrying, store_result=not retrying.ignore_result
            )
            raise held  # so Celery does not take it for sent
        if not was_new and claiming["on_conflict"] == "raise":
            raise KeyHeld(claiming.claim.key, offered.task_id)
        if not was_new:
            self._give_up(name, options, offered.task_id)
            result.id = offered.task_id
        result.was_new = was_new
        parent = self._app.current_worker_task if add_to_parent else None
        if parent:
            parent.add_trail(result)
        return result

    def _give_up(self, name: str, options: Any, holder: str) -> None:
        """Tell those who wait for a task that it will not run: its caller gave it an id, as chains and groups do."""
        task_id = options.get("task_id")
        if task_id is None or task_id == holder or options.get("ignore_result"):
            return
        from celery.app.task import Context

        request = Context(id=task_id, task=name, group=options.get("group_id"), chord=options.get("chord"))
        reason = f"not sent: task {holder} holds its unique key"
        self._app.backend.mark_as_revoked(task_id, reason, request=request, store_result=True)

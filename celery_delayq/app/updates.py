"""What `DelayQ` does to the messages of waiting tasks: it gives them other arguments, or another priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from celery import Celery

from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.transport.threads import in_a_thread

if TYPE_CHECKING:
    from celery_delayq.app import Group, TaskId


class Updates:
    """The methods of `DelayQ` that change the messages of waiting tasks."""

    app: Celery[Any]
    _each: Callable[..., Any]

    @overload
    def update(
        self,
        task_id: Group,
        *,
        args: Sequence[Any] | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        priority: int | None = ...,
        argsrepr: str | None = ...,
        kwargsrepr: str | None = ...,
        timeout: Timeout = ...,
    ) -> dict[str, bool]: ...
    @overload
    def update(
        self,
        task_id: TaskId,
        *,
        args: Sequence[Any] | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        priority: int | None = ...,
        argsrepr: str | None = ...,
        kwargsrepr: str | None = ...,
        timeout: Timeout = ...,
    ) -> bool: ...
    @overload
    def update(
        self,
        task_id: Iterable[TaskId],
        *,
        args: Sequence[Any] | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        priority: int | None = ...,
        argsrepr: str | None = ...,
        kwargsrepr: str | None = ...,
        timeout: Timeout = ...,
    ) -> dict[str, bool]: ...
    @ends_in_time
    def update(
        self,
        task_id: TaskId | Iterable[TaskId] | Group,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        priority: int | None = None,
        argsrepr: str | None = None,
        kwargsrepr: str | None = None,
        timeout: Timeout = None,
    ) -> Any:
        """Give a waiting task other arguments, or another priority. It keeps its id and its due time.

        Atomic with regard to the transfer and to other changes of the task. Everything else stays as it is, including
        what follows it in a chain, its stamps, its serializer, and its unique key, even if that was made of arguments
        that are others now.

        Args:
            task_id: the task or tasks.
            args: all positional arguments, a list or tuple; None leaves them as they are.
            kwargs: all keyword arguments; None leaves them as they are.
            priority: 0 to 9, see Celery. The task waits for the list of that priority from now on.
            argsrepr: how `args` are shown, in place of their `repr`, as in `apply_async`.
            kwargsrepr: the same for `kwargs`.
            timeout: see `DelayQ`.

        Returns:
            True if the task was waiting.

        Raises:
            TypeError: nothing was given, an argument has the wrong type, or the app has a task of that name that does
                not take these arguments.
            ValueError: `priority` is out of range, the app does not accept the content of the message, or it is not a
                task message.
            kombu.exceptions.EncodeError: the serializer of the message cannot encode the arguments.
        """
        if args is None and kwargs is None and priority is None:
            raise TypeError("give update() args, kwargs or priority")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise TypeError(f"priority must be a whole number, not {priority!r}")
        if priority is not None and not 0 <= priority <= 9:
            raise ValueError(f"priority must be 0 to 9, not {priority!r}")
        from celery_delayq.transport.messages import updated

        new: dict[str, Any] = {"args": args, "kwargs": kwargs, "argsrepr": argsrepr, "kwargsrepr": kwargsrepr}
        change = partial(updated, self.app, priority=priority, **new)
        return self._each(task_id, lambda inspector, ids: inspector.update(ids, change, priority))

    aupdate = in_a_thread(update)

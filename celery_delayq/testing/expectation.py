"""Expectation: what a test expects to wait, and what is said if it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content, registry

from celery_delayq.basics.times import shown_span, to_datetime, to_timedelta
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.transport.messages import body_of, decode

#: How many tasks an error shows.
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Expectation:
    """A task that a test expects to wait. What is None may be anything.

    Attributes:
        task: name of the task.
        args: positional arguments.
        kwargs: keyword arguments.
        due_ms: when it is due, unix time in ms.
        tolerance_ms: how much earlier or later it may be due.
        queue: name of the queue.
    """

    task: str
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    due_ms: int | None
    tolerance_ms: int
    queue: str | None

    def differences(self, found: ScheduledTask, accept: Iterable[str]) -> list[str]:
        """Return what differs in a task that waits: "task", "args", "kwargs", "due", "queue".

        Args:
            found: the task.
            accept: the content types that the app accepts.
        """
        differing = [] if found.name == self.task else ["task"]
        if self.args is not None or self.kwargs is not None:
            message = decode(found.entry.payload) or {"properties": {}}
            args, kwargs, _ = body_of(message, prepare_accept_content(list(accept)))
            kind = message["content-type"]
            if self.args is not None and list(args) != _as_sent(list(self.args), kind):
                differing.append("args")
            if self.kwargs is not None and kwargs != _as_sent(dict(self.kwargs), kind):
                differing.append("kwargs")
        if self.due_ms is not None and abs(found.entry.score - self.due_ms) > self.tolerance_ms:
            differing.append("due")
        if self.queue not in (None, found.queue):
            differing.append("queue")
        return differing

    def __str__(self) -> str:
        parts = [self.task]
        parts += [] if self.args is None else [f"args={tuple(self.args)!r}"]
        parts += [] if self.kwargs is None else [f"kwargs={dict(self.kwargs)!r}"]
        parts += [] if self.due_ms is None else [f"due={to_datetime(self.due_ms).isoformat(timespec='seconds')}"]
        parts += [] if self.queue is None else [f"queue={self.queue!r}"]
        return " ".join(parts)


def nothing_matches(
    expected: Expectation, waiting: Sequence[tuple[ScheduledTask, list[str]]], ready: Sequence[str], now_ms: int
) -> str:
    """Return what to say if no task matches.

    Args:
        expected: what was expected.
        waiting: the tasks that wait, each with what differs.
        ready: names and arguments of the tasks that are ready: they wait for nothing but a worker.
        now_ms: the time, unix time in ms.
    """
    lines = [f"no waiting task matches {expected}"]
    nearest = sorted(waiting, key=lambda found: ("task" in found[1], len(found[1])))
    lines += ["These tasks wait:"] if waiting else ["No task waits."]
    for task, differing in nearest[:_MOST_SHOWN]:
        lines.append(f"  {shown(task, now_ms)}  (not the same: {', '.join(differing)})")
    lines += ["These tasks do not wait, they are ready for a worker:"] if ready else []
    lines += [f"  {one}" for one in ready[:_MOST_SHOWN]]
    left = max(0, len(waiting) - _MOST_SHOWN) + max(0, len(ready) - _MOST_SHOWN)
    return "\n".join([*lines, *([f"  and {left} more"] if left else [])])


def shown(task: ScheduledTask, now_ms: int) -> str:
    """Return a waiting task as a line for people."""
    when = task.due.isoformat(timespec="seconds")
    left = shown_span(to_timedelta(task.entry.score - now_ms))
    call = f"{task.name} args={task.args_text} kwargs={task.kwargs_text}"
    return f"{call} due={when} (in {left}) queue={task.queue!r} id={task.id}"


def _as_sent(value: Any, content_type: str) -> Any:
    """Return a value as it comes out of a message: JSON makes lists of tuples, for example.

    A value that cannot be sent, such as `mock.ANY`, is returned as it is.
    """
    try:
        content_type, encoding, data = dumps(value, registry.type_to_name[content_type])
    except (EncodeError, TypeError):
        return value
    return loads(data, content_type, encoding, accept={content_type})

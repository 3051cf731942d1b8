"""PeriodicTask: an entry as people see it, whoever wrote it and whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_delayq.schedule.occurrences import jitter_ms, to_datetime
from celery_delayq.schedule.records import Record, Seen, State

_EMPTY: dict[str, Any] = {"task": "", "args": (), "kwargs": {}, "options": {}, "timing": {}}


@dataclass(frozen=True)
class PeriodicTask:
    """A periodic task as it is.

    Attributes:
        name: of the entry.
        task: name of the task.
        schedule: as data, or its text where only the configuration has it.
        args: of the task.
        kwargs: of the task.
        options: of its `apply_async`.
        timing: `tz`, `start`, `end`, `jitter`, ...: what is not as by default.
        app: the app whose configuration has it; None if it was added at run time.
        queue: the broker list to which it goes; None if no planner has seen it yet.
        paused: whether it is paused.
        next_run: when it runs next, aware; None if it does not, or if no planner has seen it yet.
        last_run: when it was due last, aware; None if it never was.
        runs: how often it was sent.
        error: why it cannot be planned; None if it can.
        is_registered: whether the app that asks has a task of that name; beat sends it even if not.
    """

    name: str
    task: str
    schedule: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, Any] = field(default_factory=dict)
    app: str | None = None
    queue: str | None = None
    paused: bool = False
    next_run: datetime | None = None
    last_run: datetime | None = None
    runs: int = 0
    error: str | None = None
    is_registered: bool = True

    @classmethod
    def of(cls, name: str, record: Record, seen: Seen, error: str | None, known: Container[str]) -> PeriodicTask:
        """Return an entry as it is stored; never fails.

        Args:
            name: of the entry.
            record: what it is.
            seen: where it is.
            error: why it cannot be planned; None if it can.
            known: the names of the tasks that the app has.
        """
        state = None
        try:
            state = State.parse(seen.raw) if seen.raw else None
        except ValueError as exc:
            error = error or str(exc)
        data = {**_EMPTY, **(record.definition or {})}
        for part in ("options", "timing"):
            if not isinstance(data[part], dict):  # somebody else wrote it; the error says so
                data[part] = {}
        task = str(data["task"])
        return cls(
            name=name,
            task=task,
            schedule=data.get("schedule", data.get("text")),
            args=data["args"],
            kwargs=data["kwargs"],
            options=data["options"],
            timing=data["timing"],
            app=record.app,
            queue=record.queue,
            paused=record.paused,
            next_run=_next_run(name, data, state),
            last_run=to_datetime(state.last_ms) if state and state.last_ms is not None else None,
            runs=state.runs if state else 0,
            error=error,
            is_registered=task in known,
        )


def _next_run(name: str, data: Mapping[str, Any], state: State | None) -> datetime | None:
    if state is None or state.at_ms is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        jitter = jitter_ms(name, state.at_ms, round(data["timing"].get("jitter", 0) * 1000))
        countdown = round(float(data["options"].get("countdown") or 0) * 1000)
        return to_datetime(state.at_ms + jitter + countdown)
    return to_datetime(state.at_ms)

"""PeriodicTask: the public view of an entry, even if another program wrote it or it is invalid."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from celery_delayq.basics.times import shown_span
from celery_delayq.schedule.occurrences import LONGEST_S, jitter_ms, to_datetime
from celery_delayq.schedule.records import Record, Seen, State
from celery_delayq.schedule.store import ScheduleStore

#: What an entry does, in words.
STATUSES = (
    *("planned", "late", "paused", "disabled", "ended", "never runs"),
    *("error", "unknown task", "not seen by a planner"),
)

#: How long after its time an entry is late: its planner is away, or the server refuses to plan.
_LATE = timedelta(seconds=10)

_EMPTY: dict[str, Any] = {"task": "", "args": (), "kwargs": {}, "options": {}, "timing": {}}

#: What another program may have written instead, which the error says.
_KINDS: dict[str, type | tuple[type, ...]] = {"args": (list, tuple), "kwargs": dict, "options": dict, "timing": dict}


@dataclass(frozen=True)
class PeriodicTask:
    """The current definition and state of a periodic task.

    Attributes:
        name: name of the entry.
        task: name of the task.
        schedule: the schedule as data, or as text if it exists only in the configuration.
        args: positional arguments of the task.
        kwargs: keyword arguments of the task.
        options: options of `apply_async`.
        timing: `tz`, `start`, `end`, `jitter`, ...; only values that differ from the defaults.
        app: the app whose configuration defines it; None if it was added at run time.
        queue: broker list that it is sent to; None if no planner has seen it yet.
        paused: whether it is paused.
        next_run: when it runs next, aware; None if it will not run, or if no planner has seen it yet.
        last_run: when it was last due, aware; None if it was never due.
        runs: how many times it was sent.
        error: why it cannot be planned; None if it can.
        is_registered: whether this process's app has a task of that name. Beat sends it even if not.
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

    def __repr__(self) -> str:
        next_run = "" if self.next_run is None else f", next run {self.next_run.isoformat()}"
        queue = "" if self.queue is None else f" in {self.queue!r}"
        return f"<PeriodicTask {self.name!r} {self.task!r} {self.when!r}: {self.status}{next_run}{queue}>"

    @property
    def when(self) -> str:
        """Its schedule in words: `every 1h 30m, jitter 5s`, `0 6 * * mon-fri (Europe/Berlin)`; a dash if not known."""
        given, zone, jitter = self.schedule, self.timing.get("tz"), self.timing.get("jitter")
        if not isinstance(given, dict):
            when = str(given or "-")
        elif isinstance(given.get("every"), (int, float)):
            when = f"every {_span(given['every'])}{' (relative)' if given.get('relative') else ''}"
        else:
            when = given.get("crontab") or f"{given.get('solar')} at {given.get('lat')}, {given.get('lon')}"
            when = f"{when} ({zone})" if zone else str(when)
        return f"{when}, jitter {_span(jitter)}" if isinstance(jitter, (int, float)) and jitter > 0 else when

    @property
    def status(self) -> str:
        """What it does, in words; one of `STATUSES`."""
        if self.error:
            return "error"
        if self.paused:
            return "paused"
        if not self.timing.get("enabled", True):
            return "disabled"
        if not self.is_registered:
            return "unknown task"
        if self.next_run is None:
            if self.queue is None:
                return "not seen by a planner"
            return "ended" if self.runs else "never runs"
        return "late" if datetime.now(timezone.utc) - self.next_run > _LATE else "planned"

    @classmethod
    def of(cls, name: str, record: Record, seen: Seen, error: str | None, known: Container[str]) -> PeriodicTask:
        """Return the view of a stored entry; never fails.

        Args:
            name: name of the entry.
            record: its record.
            seen: its state.
            error: why it cannot be planned; None if it can.
            known: names of the app's tasks.
        """
        state = None
        try:
            raw = seen.raw or record.last.encode()  # while it goes to another queue
            state = State.parse(raw) if raw else None
        except ValueError as exc:
            error = error or str(exc)
        data = {**_EMPTY, **(record.definition or {})}
        data.update({part: _EMPTY[part] for part, kind in _KINDS.items() if not isinstance(data[part], kind)})
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


def read_all(store: ScheduleStore, known: Container[str] = (), *, partly: bool = False) -> Iterator[PeriodicTask]:
    """Read all entries at once, and return them sorted by name; those that cannot be read or planned with the error.

    Args:
        store: where they are.
        known: names of the app's tasks.
        partly: whether entries at a node of a cluster that is away are left out, instead of an error.

    Raises:
        redis.RedisError: the server is away or refuses a command; see `ScheduleStore`.
    """
    errors = store.errors()
    records: dict[str, Record] = {}
    broken: dict[str, PeriodicTask] = {
        name: PeriodicTask(name, "", None, error=error) for name, error in errors.items()
    }
    for name, raw in store.records().items():
        try:
            records[name] = Record.parse(raw)
        except ValueError as exc:
            broken.setdefault(name, PeriodicTask(name, "", None, error=str(exc)))
    placed = [(name, record.queue) for name, record in records.items() if record.queue is not None]
    seen = dict(zip((name for name, _ in placed), store.seen(placed, partly=partly), strict=True))
    return (
        PeriodicTask.of(name, records[name], seen.get(name, Seen()), errors.get(name), known)
        if name in records
        else broken[name]
        for name in sorted(records.keys() | broken.keys())
        if name not in seen or seen[name].is_known
    )


def _next_run(name: str, data: Mapping[str, Any], state: State | None) -> datetime | None:
    if state is None or state.at_ms is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        jitter = jitter_ms(name, state.at_ms, round(data["timing"].get("jitter", 0) * 1000))
        countdown = round(float(data["options"].get("countdown") or 0) * 1000)
        return to_datetime(state.at_ms + jitter + countdown)
    return to_datetime(state.at_ms)


def _span(seconds: float) -> str:
    if not abs(seconds) <= LONGEST_S:
        return f"{seconds}s"
    whole = seconds == int(seconds)
    return shown_span(timedelta(seconds=seconds), units=4) if whole else f"{Decimal(repr(seconds)):f}s"

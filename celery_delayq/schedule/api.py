"""Schedule: read and change the periodic tasks of an app from any process, without a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from celery.result import AsyncResult
from celery.schedules import BaseSchedule
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.basics.errors import DelayqError, EntryExists, InvalidSchedule, UnknownEntry
from celery_delayq.basics.text import told
from celery_delayq.schedule.configured import configured
from celery_delayq.schedule.definition import Definition, TimingOptions
from celery_delayq.schedule.forecast import runs_from
from celery_delayq.schedule.message import evaluated, send
from celery_delayq.schedule.periodic_task import PeriodicTask, read_all
from celery_delayq.schedule.records import Record, Seen, State
from celery_delayq.schedule.service import store_of
from celery_delayq.schedule.store import ScheduleStore
from celery_delayq.transport.named import Named, called, check_known
from celery_delayq.transport.threads import in_a_thread, threads

if TYPE_CHECKING:
    from typing_extensions import Unpack  # a type checker has it, Python 3.10 has not

#: When an entry runs, see `Schedule.add`.
When: TypeAlias = "float | str | timedelta | Mapping[str, Any] | BaseSchedule"

_UNCHANGED: Any = object()


class Schedule:
    """The periodic tasks of an app: `delayq.schedule`.

    For example::

        delayq.schedule.add("report", "shop.report", "0 6 * * mon-fri", tz="Europe/Berlin")
        delayq.schedule.pause("report")
        for entry in delayq.schedule:
            print(entry.name, entry.next_run)
        delayq.schedule["report"].paused, len(delayq.schedule)

    Changes take effect in all planners at once. Threads may share a Schedule.

    Every method takes `timeout`, see `DelayQ`. It raises `kombu.exceptions.OperationalError` if the server cannot be
    reached or refuses a command, and `ConfigurationError` if the app's broker URL is not a `delayq://` URL. Methods
    that take the name of an entry raise `InvalidSchedule` if its record cannot be read: another program wrote it.

    Args:
        app: the Celery app.
        channel: a context manager that yields a channel of our transport.
    """

    def __init__(self, app: Any, channel: Callable[[], AbstractContextManager[Any]]) -> None:
        self._app = app
        self._channel = channel

    # -- changing

    @ends_in_time
    def add(
        self,
        name: str,
        task: Named,
        schedule: When,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        timeout: Timeout = None,
        **timing: Unpack[TimingOptions],
    ) -> PeriodicTask:
        """Add an entry. One atomic script.

        Args:
            name: name of the entry.
            task: a task, its name, or a signature, which has arguments and options, too.
            schedule: seconds, a timedelta, a `schedule`, `crontab` or `solar`, or a crontab expression such as
                `"0 6 * * mon-fri"` (minute, hour, day of month, month, day of week). Or as in the command:
                `"every 1h 30m"`, `"every 5 minutes"`, `"@hourly"`.
            args: positional arguments of the task, in JSON types.
            kwargs: keyword arguments of the task, in JSON types.
            options: options of `apply_async`: `queue`, `priority`, `expires` (counted from the due time), `headers`,
                ...
            timing: `tz`, `start`, `end`, `jitter`, `max_runs`, `enabled`, `missed`, `max_lateness`, `catch_up`,
                `lazy`; see [the options of an entry](../periodic.md#options-of-an-entry).
            timeout: see `DelayQ`.

        Raises:
            EntryExists: an entry of that name exists already.
            InvalidSchedule: a value is invalid or cannot be stored. The message says which.
            UnknownTask: the app does not have a task of this name, but one of a similar name.
        """
        given = {"schedule": schedule, **self._call_of(task, {"args": args, "kwargs": kwargs, "options": options})}
        return self.add_definition(Definition.of(name, {**given, "timing": timing}, self._app))

    @ends_in_time
    def add_definition(self, definition: Definition, *, timeout: Timeout = None) -> PeriodicTask:
        """Add an entry by its definition; see `add`."""
        name = definition.name
        with self._store() as store:
            record = Record(definition.fingerprint, store.now_ms(), _data_of(definition))
            if not store.write_record(name, b"", record):
                raise EntryExists(f"periodic task {name!r} exists already: update it, or choose another name")
            return self._show(store, name, record)

    @ends_in_time
    def update(
        self,
        name: str,
        *,
        task: Named = _UNCHANGED,
        schedule: When = _UNCHANGED,
        args: Sequence[Any] = _UNCHANGED,
        kwargs: Mapping[str, Any] = _UNCHANGED,
        options: Mapping[str, Any] = _UNCHANGED,
        timeout: Timeout = None,
        **timing: Unpack[TimingOptions],
    ) -> PeriodicTask:
        """Change an entry that was added at run time. Arguments are those of `add`; those not given stay as they are.

        The next planner that learns of the change replaces the pending occurrence, in one atomic script. The next time
        is counted from the last run: if a new interval is already over, the task runs now.

        Raises:
            UnknownEntry: there is no such entry.
            EntryExists: the entry is defined in the configuration, which alone can change it.
            InvalidSchedule: a value is invalid or cannot be stored. The message says which.
            UnknownTask: the app does not have a task of this name, but one of a similar name.
        """
        given = {"schedule": schedule, "args": args, "kwargs": kwargs, "options": options}
        changes = {key: value for key, value in given.items() if value is not _UNCHANGED}
        if task is not _UNCHANGED:
            changes = self._call_of(task, changes)
        return self.update_fields(name, changes, timing)

    @ends_in_time
    def update_fields(
        self, name: str, changes: Mapping[str, Any], timing: Mapping[str, Any], *, timeout: Timeout = None
    ) -> PeriodicTask:
        """Change fields and timing by their names; see `update`. None restores the default of a timing field."""

        def change(record: Record) -> Record:
            before = dict(record.definition or {})
            known = before.get("timing")
            data = {**before, **changes, "timing": {**(known if isinstance(known, dict) else {}), **timing}}
            definition = Definition.of(name, data, self._app)
            return replace(record, fingerprint=definition.fingerprint, definition=_data_of(definition))

        return self._change(name, change, only_added=True)

    @ends_in_time
    def remove(self, name: str, *, timeout: Timeout = None) -> None:
        """Remove an entry that was added at run time, even if unreadable, and withdraw its pending occurrence.

        Raises:
            UnknownEntry: there is no such entry.
            EntryExists: the entry is defined in the configuration. Remove it there, or pause it.
        """
        with self._store() as store:
            while True:
                try:
                    record = self._record(store, name, only_added=True)
                    raw, queues = record.raw, record.queues
                except InvalidSchedule:  # the record is unreadable: its state may be in any queue
                    raw, queues = store.record(name), sorted(store.queues())
                if store.write_record(name, raw, None):
                    break
            store.forget_all(name, queues)
            store.set_error(name, None)

    @ends_in_time
    def pause(self, name: str, *, timeout: Timeout = None) -> PeriodicTask:
        """Pause an entry until `resume`, and withdraw its pending occurrence. Works for entries of the configuration.

        Raises:
            UnknownEntry: there is no such entry.
        """
        shown = self._change(name, lambda record: replace(record, paused=True))
        if shown.queue is not None:
            with self._store() as store:
                store.rest(name, shown.queue)
        return self.get(name)

    @ends_in_time
    def resume(self, name: str, *, timeout: Timeout = None) -> PeriodicTask:
        """Resume a paused entry. Runs that were missed in the meantime are not made up for.

        Raises:
            UnknownEntry: there is no such entry.
        """
        return self._change(name, lambda record: replace(record, paused=False))

    @ends_in_time
    def run_now(self, name: str, *, timeout: Timeout = None) -> AsyncResult:
        """Send the task of an entry now, in addition to its schedule. It does not count as one of its runs.

        A `countdown` of the entry, which delays its runs, does not delay this one.

        Returns:
            The result. If it is not sent because another task holds its unique key, this is the result of that task:
            `delayq.was_new(result)` tells.

        Raises:
            UnknownEntry: there is no such entry.
            KeyHeld: another task holds its unique key, and `on_conflict` is "raise".
            InvalidSchedule: the entry exists only in code, in a configuration that this process does not have.
        """
        with self._store() as store:
            definition = self._definition(name, self._record(store, name))
        options = {name: value for name, value in definition.options.items() if name not in ("countdown", "eta")}
        return send(self._app, definition, evaluated(definition), options)

    # -- reading

    @ends_in_time
    def get(self, name: str, *, timeout: Timeout = None) -> PeriodicTask:
        """Return an entry.

        Raises:
            UnknownEntry: there is no such entry.
        """
        with self._store() as store:
            raw, error = self._read(store, name)
            if error is not None and not raw:  # the entry in the configuration is invalid
                return PeriodicTask(name, "", None, error=error)
            return self._show(store, name, self._record(store, name))

    @ends_in_time
    def next_runs(self, name: str, number: int = 5, *, timeout: Timeout = None) -> list[datetime]:
        """Return when an entry runs next, as it is planned now: aware datetimes in UTC, the planned run first.

        There are fewer if it ends, one if its schedule decides only when it is asked, and none if nothing is planned:
        it is paused, or no planner has seen it.

        Args:
            name: name of the entry.
            number: how many runs.
            timeout: see `DelayQ`.

        Raises:
            UnknownEntry: there is no such entry.
            InvalidSchedule: the entry exists only in code, in a configuration that this process does not have.
        """
        with self._store() as store:
            record = self._record(store, name)
            if record.queue is None or record.paused:
                return []
            raw = store.seen([(name, record.queue)])[0].raw
            definition = self._definition(name, record)
        if not raw:
            return []
        try:
            return runs_from(definition, State.parse(raw), number)
        except Exception as exc:  # of a user's schedule class, or another program wrote the state
            raise InvalidSchedule(f"cannot tell when periodic task {name!r} runs: {told(exc)}") from exc

    aadd = in_a_thread(add)
    aadd_definition = in_a_thread(add_definition)
    aupdate = in_a_thread(update)
    aupdate_fields = in_a_thread(update_fields)
    aremove = in_a_thread(remove)
    apause = in_a_thread(pause)
    aresume = in_a_thread(resume)
    arun_now = in_a_thread(run_now)
    aget = in_a_thread(get)
    anext_runs = in_a_thread(next_runs)

    def __contains__(self, name: str) -> bool:
        """Return whether there is an entry of that name."""
        with self._store() as store:
            return bool(self._read(store, name)[0])

    def __iter__(self) -> Iterator[PeriodicTask]:
        """Yield all entries, sorted by name, including those with errors."""
        with self._store() as store:
            found = read_all(store, known=self._app.tasks)
        yield from found

    async def __aiter__(self) -> AsyncIterator[PeriodicTask]:
        """Yield all entries in an `async for`."""
        for entry in await threads.run(lambda: list(self)):
            yield entry

    def __getitem__(self, name: str) -> PeriodicTask:
        """Return an entry, see `get`."""
        return self.get(name)

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        """It is there, whether or not it has entries. Asks nothing."""
        return True

    # -- helpers

    def _call_of(self, task: Named, given: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an entry for a task. What is given comes before what a signature has.

        Raises:
            UnknownTask: see `add`.
        """
        check_known(self._app, task)
        name, signature = called(task)
        own = {field: signature.get(field) for field in ("args", "kwargs", "options") if not given.get(field)}
        return {"task": name, **given, **{field: value for field, value in own.items() if value}}

    @contextmanager
    def _store(self) -> Iterator[ScheduleStore]:
        with self._channel() as channel:
            try:
                yield store_of(channel, replicate=True)
            except DelayqError:
                raise
            except ResponseError as exc:
                raise OperationalError(f"the server refused to read or write the schedule: {exc}") from exc
            except channel.connection.client.connection_errors as exc:
                raise OperationalError(f"cannot reach the schedule: {exc}") from exc

    @staticmethod
    def _read(store: ScheduleStore, name: str) -> tuple[bytes, str | None]:
        """Return the record of an entry as stored, and why it cannot be planned."""
        try:
            return (store.record(name), store.error(name)) if name else (b"", None)
        except UnicodeEncodeError:  # a name that cannot be stored
            return b"", None

    def _record(self, store: ScheduleStore, name: str, *, only_added: bool = False) -> Record:
        raw, error = self._read(store, name)
        if not raw and error is not None:
            raise UnknownEntry(
                f"periodic task {name!r} is in the configuration, and cannot be planned: {error}. Correct it there"
            )
        if not raw:
            raise UnknownEntry(f"there is no periodic task {name!r}")
        try:
            record = Record.parse(raw)
        except ValueError as exc:
            raise InvalidSchedule(f"cannot read periodic task {name!r}: {exc}. To delete it, call remove()") from exc
        if only_added and record.app is not None:
            raise EntryExists(
                f"periodic task {name!r} is in the configuration of app {record.app!r}: change it there; "
                "here it can only be paused, resumed and run now"
            )
        return record

    def _change(self, name: str, change: Callable[[Record], Record], *, only_added: bool = False) -> PeriodicTask:
        with self._store() as store:
            while True:
                record = self._record(store, name, only_added=only_added)
                changed = change(record)
                if changed == record or store.write_record(name, record.raw, changed):
                    return self._show(store, name, changed)

    def _definition(self, name: str, record: Record) -> Definition:
        own = configured(self._app).entries.get(name) if record.app is not None else None
        return own or Definition.of(name, record.definition or {}, self._app)

    def _show(self, store: ScheduleStore, name: str, record: Record) -> PeriodicTask:
        seen = store.seen([(name, record.queue)])[0] if record.queue is not None else Seen()
        return PeriodicTask.of(name, record, seen, store.error(name), known=self._app.tasks)


def _data_of(definition: Definition) -> dict[str, Any]:
    """Return a definition in JSON types.

    Raises:
        InvalidSchedule: it has values of other types.
    """
    data = definition.data()
    if data is None:
        raise InvalidSchedule(
            f"cannot store periodic task {definition.name!r}: its schedule must be an interval, a crontab or a solar "
            "event, and args, kwargs and options must be JSON types. Define other entries in beat_schedule"
        )
    return data

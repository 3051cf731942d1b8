"""Definition: the definition of a periodic task, from the configuration or from Redis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone, tzinfo
from functools import cached_property
from numbers import Real
from typing import Any, Literal, TypedDict
from zoneinfo import ZoneInfo

from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule
from dateutil.parser import isoparse

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.basics.text import told
from celery_delayq.options.settings import MISSED_POLICIES as MISSED_POLICIES
from celery_delayq.options.settings import MOST_CATCH_UP, misspelt
from celery_delayq.schedule import encoding
from celery_delayq.schedule.occurrences import (
    LATEST_MS,
    LONGEST_S,
    Times,
    is_asked,
    jitter_ms,
    reads_clock,
    to_datetime,
    to_ms,
)

#: Key in an entry's `options` for our additional fields, which Celery does not know.
OPTION = "delayq"


class TimingOptions(TypedDict, total=False):
    """What `Schedule.add` and `update` take, see `Timing`. None means the default."""

    tz: str | None
    start: str | datetime | None
    end: str | datetime | None
    jitter: float | timedelta | None
    max_runs: int | None
    enabled: bool | None
    missed: Literal["skip", "once", "all"] | None
    max_lateness: float | timedelta | None
    catch_up: int | None
    lazy: bool | None


@dataclass(frozen=True)
class Timing:
    """Settings that modify a schedule. Times are aware datetimes or ISO 8601 strings; spans are timedeltas or seconds.

    Attributes:
        tz: name of the time zone of a crontab; by default the app's time zone.
        start: the entry does not run before this time. An interval first runs at this time.
        end: the entry does not run after this time.
        jitter: each run is delayed by a random time of at most this length.
        max_runs: maximum number of runs.
        enabled: whether the entry runs at all.
        missed: what to do with runs that were missed while no worker was up: `skip`, `once` or `all`. None means the
            app's default.
        max_lateness: a run that would start later than this is dropped. None means the app's default.
        catch_up: how many missed runs `all` makes up for, the latest ones. None means the app's default.
        lazy: build the message when the task is due, and not one occurrence ahead.
    """

    tz: str | None = None
    start: str | datetime | None = None
    end: str | datetime | None = None
    jitter: float = 0.0
    max_runs: int | None = None
    enabled: bool = True
    missed: str | None = None
    max_lateness: float | None = None
    catch_up: int | None = None
    lazy: bool = False

    def __post_init__(self) -> None:
        """Check all values, and convert times to strings.

        Raises:
            InvalidSchedule: a value has the wrong type or is out of range. The message names it.
        """
        if self.tz is not None:
            try:
                ZoneInfo(self.tz)
            except Exception as exc:
                raise InvalidSchedule(
                    f"tz must be the name of a time zone such as 'Europe/Berlin', not {self.tz!r}"
                ) from exc
        for name in ("start", "end"):
            object.__setattr__(self, name, _moment(name, getattr(self, name)))
        if self.start is not None and self.end is not None and str(self.end) < str(self.start):
            raise InvalidSchedule(f"end must be later than start, but {self.end} is before {self.start}")
        for name, least, most, whole in (
            ("jitter", 0, LONGEST_S, False),
            ("max_lateness", 0, LONGEST_S, False),
            ("max_runs", 1, LONGEST_S, True),
            ("catch_up", 0, MOST_CATCH_UP, True),
        ):
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), least, most, whole=whole)
        for name in ("enabled", "lazy"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidSchedule(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.missed is not None and self.missed not in MISSED_POLICIES:
            raise InvalidSchedule(f"missed must be one of {', '.join(MISSED_POLICIES)}, not {self.missed!r}")

    @cached_property
    def bounds(self) -> tuple[int | None, int | None, tzinfo | None]:
        """Start and end as unix time in ms, and the time zone; see `Times`."""
        start, end = (None if text is None else to_ms(isoparse(str(text))) for text in (self.start, self.end))
        return start, end, ZoneInfo(self.tz) if self.tz else None

    @property
    def jitter_ms(self) -> int:
        """The maximum jitter in ms."""
        return round(self.jitter * 1000)

    def data(self) -> dict[str, Any]:
        """Return the values that differ from the defaults."""
        return {name: getattr(self, name) for name, usual in _TIMING_DEFAULTS.items() if getattr(self, name) != usual}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Timing:
        """Return the timing for values by name. None means the default.

        Raises:
            InvalidSchedule: a name is unknown, or a value is invalid.
        """
        if not given:
            return _AS_ALWAYS
        for name in given:
            if name not in _TIMING_DEFAULTS:
                meant = misspelt(str(name), _TIMING_DEFAULTS)
                hint = f"did you mean {meant!r}?" if meant else f"known options are {', '.join(_TIMING_DEFAULTS)}"
                raise InvalidSchedule(f"unknown option {name!r}: {hint}")
        values = {name: value for name, value in given.items() if value is not None}
        for name in ("jitter", "max_lateness"):
            if isinstance(span := values.get(name), timedelta):
                values[name] = span.total_seconds()
        return cls(**values)


_TIMING_DEFAULTS = {one.name: one.default for one in fields(Timing)}


def _moment(name: str, given: Any) -> str | None:
    if given is None:
        return None
    try:
        when = given if isinstance(given, datetime) else isoparse(given)
    except (TypeError, ValueError) as exc:
        raise InvalidSchedule(f"{name} must be a datetime or an ISO 8601 string, not {given!r}") from exc
    if when.tzinfo is None:
        raise InvalidSchedule(f"{name} must have a time zone, but {given!r} has none")
    if not 1970 <= when.year < to_datetime(LATEST_MS).year:
        raise InvalidSchedule(f"{name} must be in the years 1970 to {to_datetime(LATEST_MS).year - 1}, not {given!r}")
    return when.astimezone(timezone.utc).isoformat()


def _check_number(name: str, value: Any, least: float, most: float, *, whole: bool) -> None:
    accepted = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted) or not least <= value <= most:
        kind = "a whole number" if whole else "a number of seconds"
        raise InvalidSchedule(f"{name} must be {kind}, {least:,} to {most:,}, not {value!r}")


def _check_mapping(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidSchedule(f"{name} must be a dict, not {value!r}")


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidSchedule(f"{name} must be a non-empty string, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidSchedule(f"{name} {value!r} cannot be stored: it is not valid Unicode") from exc


#: Shared by all entries without timing, because there may be very many.
_AS_ALWAYS = Timing()
_NOTHING: Mapping[str, Any] = {}

#: Options of entries, by their text. Entries with the same options share one object.
_OPTIONS: dict[str, Mapping[str, Any]] = {}
_MOST_OPTIONS = 1000


def _shared(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the shared object for these options; `Builder` identifies options by identity."""
    if not options:
        return _NOTHING
    if len(_OPTIONS) >= _MOST_OPTIONS or not is_json(options):
        return options
    return _OPTIONS.setdefault(repr(options), options)


@dataclass(frozen=True, slots=True)
class Definition:
    """A periodic task.

    Attributes:
        name: name of the entry.
        task: name of the task.
        schedule: when it runs.
        args: positional arguments of the task.
        kwargs: keyword arguments of the task.
        options: options of `apply_async`.
        timing: settings that modify the schedule.
        routing: fingerprint of the settings, of the app and of the task, that say where and how it is sent, if known.
    """

    name: str
    task: str
    schedule: BaseSchedule
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)
    routing: str = ""
    _fingerprint: str = field(default="", init=False, compare=False, repr=False)

    @property
    def fingerprint(self) -> str:
        """A text that is the same for equal definitions in every process."""
        if not self._fingerprint:
            fields = {**self._fields(), "schedule": encoding.encode(self.schedule) or self.schedule}
            zone = str(self.schedule.tz) if reads_clock(self.schedule) and self.timing.tz is None else ""
            found = encoding.fingerprint({**fields, "routing": self.routing, "zone": zone})
            object.__setattr__(self, "_fingerprint", found)
        return self._fingerprint

    @property
    def is_asked(self) -> bool:
        """Whether its schedule decides for itself, at run time, whether it is due."""
        return is_asked(self.schedule)

    @property
    def is_lazy(self) -> bool:
        """Whether its message is built when it is due, and not one occurrence ahead."""
        values = (*self.args, *self.kwargs.values())
        return self.timing.lazy or self.is_asked or any(isinstance(value, BeatLazyFunc) for value in values)

    @property
    def times(self) -> Times:
        """Its occurrences, if its schedule is not asked."""
        return Times(self.schedule, *self.timing.bounds)

    @property
    def countdown_ms(self) -> int:
        """How long after its occurrence its task is due, without jitter, in ms."""
        return round(float(self.options.get("countdown") or 0) * 1000)

    def delay_ms(self, at_ms: int) -> int:
        """Return how long after an occurrence its task is due, in ms."""
        return self.countdown_ms + jitter_ms(self.name, at_ms, self.timing.jitter_ms)

    def expires_of(self, task: Any) -> Any:
        """Return the option `expires`: that of the entry; without one, that of its task.

        Args:
            task: the task; None if the app does not have it.

        Source: Celery 5.7 `Task.apply_async`.
        """
        return self.options["expires"] if "expires" in self.options else getattr(task, "expires", None)

    def data(self) -> dict[str, Any] | None:
        """Return the definition in JSON types, or None if it has values of other types."""
        schedule = encoding.encode(self.schedule)
        if schedule is None or not all(map(is_json, (self.args, self.kwargs, self.options))):
            return None
        return {**self._fields(), "schedule": schedule}

    @property
    def shown(self) -> str:
        """Its schedule as text, if that has no form as data; never fails."""
        try:
            return repr(self.schedule)
        except Exception:  # of a user's class
            return type(self.schedule).__qualname__

    def _fields(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
            "options": dict(self.options),
            "timing": {} if self.timing is _AS_ALWAYS else self.timing.data(),
        }

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any], app: Any, routing: str = "") -> Definition:
        """Return the definition for an entry of `beat_schedule`, or for the result of `data`.

        Raises:
            InvalidSchedule: a field is missing or invalid. The message names the entry.
        """
        try:
            _check_mapping("an entry", given)
            return cls._of(name, dict(given), app, routing)
        except Exception as exc:  # a user's schedule class may raise anything, another program may write anything
            raise InvalidSchedule(f"periodic task {name!r}: {told(exc)}") from exc

    @classmethod
    def _of(cls, name: str, given: dict[str, Any], app: Any, routing: str) -> Definition:
        _check_text("the name of an entry", name)
        task, schedule = given.pop("task", None), given.pop("schedule", None)
        args, kwargs = given.pop("args", None) or (), given.pop("kwargs", None) or {}
        for part in ("options", "timing"):
            _check_mapping(part, given.get(part))
        options = dict(given.pop("options", None) or {})
        _check_mapping(f"options[{OPTION!r}]", options.get(OPTION))
        if isinstance(options.get("countdown"), timedelta):
            options["countdown"] = options["countdown"].total_seconds()
        if options.get("countdown") is not None:
            _check_number("countdown", options["countdown"], -LONGEST_S, LONGEST_S, whole=False)
        timing = {**(options.pop(OPTION, None) or {}), **(given.pop("timing", None) or {})}
        relative = given.pop("relative", False)
        if given:
            raise InvalidSchedule(f"unknown field {next(iter(given))!r}")
        _check_text("the name of the task", task)
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
            raise InvalidSchedule("args must be a list or tuple, and kwargs a dict")
        if relative and isinstance(schedule, (int, float, timedelta)):
            every_s = schedule.total_seconds() if isinstance(schedule, timedelta) else schedule
            schedule = {"every": every_s, "relative": True}
        decoded = encoding.decode(schedule, app)
        found = cls(
            name, task, decoded, tuple(args), dict(kwargs) or _NOTHING, _shared(options), Timing.of(timing), routing
        )
        _check_expires(found, found.expires_of(app.tasks.get(task)))
        return found


def _check_expires(definition: Definition, expires: Any) -> None:
    """Refuse an entry whose runs would expire before they are due, if they are delayed for as long as they may be."""
    delay_ms = definition.countdown_ms + definition.timing.jitter_ms
    if isinstance(expires, Real) and 0 < delay_ms >= float(expires) * 1000:
        parts = {"countdown": definition.countdown_ms, "jitter": definition.timing.jitter_ms}
        delays = " plus ".join(name for name, part_ms in parts.items() if part_ms)
        whose = "" if "expires" in definition.options else "of its task "
        raise InvalidSchedule(
            f"{delays} ({delay_ms / 1000:g} s) must be shorter than expires {whose}({float(expires):g} s): otherwise a "
            "run may expire before it is due"
        )


def why_invalid(error: Exception) -> str:
    """Return what is wrong with an entry, by what `Definition.of` raised, without the name of the entry."""
    cause = error.__cause__ if isinstance(error, InvalidSchedule) else None
    return told(cause or error)


def is_json(value: Any) -> bool:
    """Return whether a value survives a JSON round trip unchanged, except that tuples become lists."""
    try:
        return _is_json(value)
    except RecursionError:
        return False


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, (str, int)):
        return True
    if isinstance(value, float):
        return not math.isnan(value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(one) for key, one in value.items())
    return isinstance(value, (list, tuple)) and all(map(_is_json, value))

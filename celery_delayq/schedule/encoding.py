"""Convert schedules to data and back. Data can be stored in Redis, shown and compared.

    {"every": 30.0}                                        a number, timedelta or `schedule`
    {"every": 3600.0, "relative": true}
    {"crontab": "*/5 8-17 * * mon-fri"}                    minute, hour, day of month, month, day of week
    {"solar": "sunset", "lat": 52.5, "lon": 13.4}

Other classes, and subclasses of these, have no such form: they exist only in the code of the configuration.
"""

from __future__ import annotations

import copyreg
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule, solar
from kombu.utils.json import JSONEncoder as MessageEncoder

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.basics.times import parse_span
from celery_delayq.schedule.occurrences import LONGEST_S

#: The fields of a crontab expression, in their order.
_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def encode(given: BaseSchedule) -> dict[str, Any] | None:
    """Return a schedule as data, or None if it is of another class."""
    if type(given) is schedule:
        data: dict[str, Any] = {"every": given.run_every.total_seconds()}
        return {**data, "relative": True} if given.relative else data
    if type(given) is crontab:
        return {"crontab": crontab_line(_written(given))}
    if type(given) is solar:
        return {"solar": given.event, "lat": given.lat, "lon": given.lon}
    return None


def _written(given: crontab) -> tuple[Any, ...]:
    """Return the five fields of a crontab as they were written."""
    dates = (given._orig_day_of_month, given._orig_month_of_year, given._orig_day_of_week)
    return given._orig_minute, given._orig_hour, *dates


def crontab_line(fields: Iterable[Any]) -> str:
    """Return the five fields of a crontab as one expression. Each is text, a number, or some numbers."""
    return " ".join(map(_field, fields))


def _field(given: Any) -> str:
    if isinstance(given, Iterable) and not isinstance(given, str):
        return ",".join(str(number) for number in sorted(given))
    return str(given).replace(" ", "")


#: Crontab expressions with names, as cron has them.
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

#: The name of a unit, of which `parse_span` knows the first letter.
_UNIT = re.compile("(second|minute|hour|day|week)s?", re.IGNORECASE)


def written(text: str) -> str | timedelta:
    """Return the schedule that a person has written, in a form for `decode`: an interval, or a crontab expression.

    An interval may also be as lists show it, `every 1h 30m`, or have units in full: `every 5 minutes`, `every hour`.

    Raises:
        InvalidSchedule: it is neither. Fields of a crontab are not checked here.
    """
    first, *rest = text.split() or [""]
    is_interval = bool(rest) and first.lower() == "every"
    if (len(rest) == 4 and not is_interval) or first.lower() in _NAMED:
        return text
    span = text
    if is_interval:
        span = re.sub("^(?=[a-z])", "1", _UNIT.sub(lambda unit: unit[0][0].lower(), " ".join(rest)))
    try:
        return parse_span(re.sub(r"(?<!\d) | (?!\d)", "", span))  # but "5 4" is not 54
    except (ValueError, OverflowError) as exc:
        raise InvalidSchedule(
            f"{text!r} is neither an interval (every 1h 30m, every 5 minutes, 90s) nor a crontab expression of five "
            "fields (0 6 * * mon-fri, or @hourly, @daily, @weekly, @monthly, @yearly)"
        ) from exc


def json_of(text: str, kind: type) -> Any:
    """Return the list or the object that a person has written as JSON.

    Args:
        text: the JSON.
        kind: list or dict.

    Raises:
        InvalidSchedule: it is no such JSON.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidSchedule(f"not valid JSON: {exc}") from exc
    if not isinstance(found, kind):
        raise InvalidSchedule(f"must be a JSON {'list' if kind is list else 'object'}")
    return found


def decode(given: Any, app: Any) -> BaseSchedule:
    """Return the schedule for any accepted form.

    Args:
        given: data (see above), text (see `written`), seconds, a timedelta, or a schedule.
        app: the Celery app. Its time zone applies.

    Raises:
        InvalidSchedule: `given` is not a valid schedule. The message says what is wrong.
    """
    try:
        found = _decode(given, app)
    except InvalidSchedule:
        raise
    except Exception as exc:  # Celery's ParseException is a bare Exception
        raise InvalidSchedule(f"{given!r} is not a valid schedule: {exc}") from exc
    if type(found) is schedule and not 0 < found.run_every.total_seconds() <= LONGEST_S:
        raise InvalidSchedule(
            f"an interval must be more than 0 and at most {LONGEST_S:,} seconds, "
            f"not {found.run_every.total_seconds():g}"
        )
    if isinstance(found, crontab):
        for name in _FIELDS:
            if not getattr(found, name):
                raise InvalidSchedule(f"the field {name} of a crontab must not be empty: it would never run")
    return found


def _decode(given: Any, app: Any) -> BaseSchedule:
    if isinstance(given, str):
        found = written(given)
        given = {"crontab": found} if isinstance(found, str) else found
    if not isinstance(given, Mapping):
        if isinstance(given, bool) or not isinstance(given, (int, float, timedelta, BaseSchedule)):
            raise InvalidSchedule(
                f"{given!r} is not a valid schedule: give seconds, a timedelta, a crontab, a solar event, "
                "or a crontab expression such as '*/5 8-17 * * mon-fri' or '@hourly'"
            )
        return maybe_schedule(given, app=app)
    fields = dict(given)
    if fields.keys() <= {"every", "relative"} and "every" in fields:
        return schedule(timedelta(seconds=fields["every"]), fields.get("relative", False), app=app)
    if fields.keys() == {"crontab"}:
        return _crontab(fields["crontab"], app)
    if fields.keys() == {"solar", "lat", "lon"}:
        return solar(fields["solar"], fields["lat"], fields["lon"], app=app)
    raise InvalidSchedule(f"{given!r} is not a valid schedule: use the fields every, crontab or solar")


#: Crontabs by app and fields. Many entries may share one, and each crontab holds sets of up to 60 numbers.
#: Two threads that make the same one at the same moment may both keep theirs, which only costs memory.
_crontabs: WeakValueDictionary[tuple[Any, ...], crontab] = WeakValueDictionary()


def _crontab(line: str, app: Any) -> crontab:
    fields = _NAMED.get(line.strip().lower(), line).split()
    if len(fields) != 5:
        raise InvalidSchedule(
            f"{line!r} is not a crontab expression of five fields (minute, hour, day of month, month, day of week)"
        )
    key = (id(app), *fields)  # the app lives as long as the crontab, which refers to it
    found = _crontabs.get(key)
    if found is None:
        given = dict(zip(_FIELDS, fields, strict=True))
        try:
            found = _crontabs[key] = crontab(**given, app=app)
        except Exception as exc:  # which does not say in which field
            for name, field in given.items():
                try:
                    crontab(**{name: field})
                except Exception as wrong:
                    raise ValueError(f"{name.replace('_', ' ')} {field!r}: {wrong}") from exc
            raise
    return found


def fingerprint(value: Any) -> str:
    """Return a short text that is the same for equal values in every process, and another one for other values."""
    try:
        text = _encode(value)
    except TypeError:  # some keys are not strings
        text = _encode(_plain(value))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _sent(value: Any) -> Any:
    """Return in JSON types what a message has in the place of a value that JSON does not know."""
    try:
        return _MESSAGE_JSON.default(value)
    except Exception:  # another serializer may know it
        return _plain(value)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value in JSON types. Other objects become their class, and what pickle would keep of them.

    It is not pickled: those bytes depend on the order of a set. Nor is it shown, which may have an address.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, Mapping):
        return sorted(([_plain(key), _plain(one, depth)] for key, one in value.items()), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return [_plain(one, depth) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(one, depth) for one in value), key=json.dumps)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kept = None if depth > _DEEPEST else _kept(value)
    return [f"{type(value).__module__}.{type(value).__qualname__}", _plain(kept, depth + 1)]


def _kept(value: Any) -> Any:
    """Return what an object consists of; None if it cannot be pickled, so that no message can have it."""
    if isinstance(value, BaseSchedule):  # it is not sent, and Celery's classes keep less of it than a subclass may have
        names = ("_app", "app", "tz", "utc_enabled")
        return {name: one for name, one in vars(value).items() if name not in names}
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        kept = value.__reduce_ex__(4) if reduce is None else reduce(value)
        # The items of a list and those of a dict are iterators.
        return kept if isinstance(kept, str) else [*kept[:3], *map(list, filter(None, kept[3:5]))]
    except Exception:
        return None


#: How many objects in each other are told apart; it also ends the search in those that refer to each other.
_DEEPEST = 3

_MESSAGE_JSON = MessageEncoder()
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_sent).encode

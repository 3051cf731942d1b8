"""The form of a periodic task: its fields, as a person writes them, and the definition that they mean.

Arguments and further options are lines: `42`, `some text`, or `name=value`. A value is JSON, if it is; otherwise text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from hashlib import blake2b
from math import inf
from typing import Any

from celery_delayq.basics.errors import InvalidSchedule
from celery_delayq.basics.times import parse_span, parse_time
from celery_delayq.schedule.definition import MISSED_POLICIES
from celery_delayq.schedule.encoding import written
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.web.request import Params, encoded

#: Fields of `Timing`, by what they are.
_TIMES, _SPANS, _NUMBERS, _SWITCHES = ("start", "end"), ("jitter", "max_lateness"), ("max_runs", "catch_up"), ("lazy",)

#: All fields of the form but the name of the entry, in their order.
FIELDS = (
    *("task", "when", "tz", "arguments", "queue", "priority", "options"),
    *(*_TIMES, *_SPANS, "missed", *_NUMBERS, "enabled", *_SWITCHES),
)

#: What the field `missed` offers.
POLICIES = MISSED_POLICIES

_NAMED = re.compile(r"([^\W\d]\w*)\s*=\s*(.*)")


# -- from the form


def fields_of(form: Params, *, wants_schedule: bool = True) -> dict[str, Any]:
    """Return the fields of an entry that a form has, see `Definition.of`.

    Args:
        form: the form.
        wants_schedule: whether the schedule is one of them.

    Raises:
        InvalidSchedule: one cannot be read. The message says which.
    """
    given = {name: form.get(name).strip() for name in FIELDS}
    found: dict[str, Any] = {"task": given["task"]}
    if wants_schedule:
        found["schedule"] = written(given["when"])
    found["args"], found["kwargs"] = _read_lines("arguments", given["arguments"])
    unnamed, options = _read_lines("options", given["options"])
    if unnamed:
        raise InvalidSchedule(f"options must be lines with name=value, not {unnamed[0]!r}")
    if given["queue"]:
        options["queue"] = given["queue"]
    if given["priority"]:
        options["priority"] = _number("priority", given["priority"])
    return {**found, "options": options, "timing": _timing_of(given)}


def _timing_of(given: Mapping[str, str]) -> dict[str, Any]:
    timing: dict[str, Any] = {name: given[name] for name in ("tz", "missed") if given[name]}
    for names, read in ((_TIMES, _time), (_SPANS, _span), (_NUMBERS, _number)):
        timing |= {name: read(name, given[name]) for name in names if given[name]}
    timing |= {name: True for name in _SWITCHES if given[name]}
    if given["enabled"]:  # what is chosen is that it does not run
        timing["enabled"] = False
    return timing


def _time(name: str, text: str) -> str:
    try:
        found = parse_time(text)
        return (datetime.now(timezone.utc) + found if isinstance(found, timedelta) else found).isoformat()
    except (ValueError, OverflowError) as exc:
        raise InvalidSchedule(f"{name} must be a time such as 2030-12-31 23:59 in UTC, or 2h, not {text!r}") from exc


def _span(name: str, text: str) -> float:
    try:
        return parse_span(text).total_seconds()
    except (ValueError, OverflowError) as exc:
        raise InvalidSchedule(f"{name} must be a span such as 90s or 1h30m, not {text!r}") from exc


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise InvalidSchedule(f"{name} must be a whole number, not {text!r}") from exc


def _read_lines(name: str, text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the values of lines, and those with names."""
    unnamed, named = list[Any](), dict[str, Any]()
    for line in filter(None, map(str.strip, text.split("\n"))):
        key, value = _read_line(name, line)
        if key is None:
            unnamed.append(value)
        else:
            named[key] = value
    return unnamed, named


def _read_line(name: str, line: str) -> tuple[str | None, Any]:
    found = _NAMED.fullmatch(line)
    key, text = found.groups() if found else (None, line)
    try:
        return key, json.loads(text)
    except (ValueError, RecursionError) as exc:
        if text[:1] in ("[", "{", '"') or text.isdigit():  # meant as JSON
            raise InvalidSchedule(f"{name}: {line[:100]!r} is not valid JSON: {str(exc)[:200]}") from exc
        return key, text


# -- to the form


def form_of(entry: PeriodicTask) -> Params | None:
    """Return the fields of the form as an entry has them; None if the form cannot say them all."""
    options, timing = dict(entry.options), dict(entry.timing)
    fields: dict[str, Any] = {"task": entry.task, "when": line_of(_given(entry))}
    if isinstance(options.get("queue"), str):
        fields["queue"] = options.pop("queue")
    if type(options.get("priority")) is int:
        fields["priority"] = options.pop("priority")
    fields["enabled"] = "" if timing.pop("enabled", True) else "no"
    for name in (*_SWITCHES, *_TIMES, *_SPANS, *_NUMBERS, "tz", "missed"):
        if name in timing:
            fields[name] = _shown(name, timing.pop(name))
    if timing or not all(_NAMED.fullmatch(f"{name}=") for name in (*entry.kwargs, *options)):
        return None
    fields["arguments"] = "\n".join((*map(_line, entry.args), *_named_lines(entry.kwargs)))
    fields["options"] = "\n".join(_named_lines(options))
    return Params(encoded(fields))


def _shown(name: str, value: Any) -> str:
    if name in _SWITCHES:
        return "yes" if value else ""
    if name in _SPANS and type(value) in (int, float):
        return _seconds(value)
    if name in _TIMES and isinstance(value, str):
        return value.removesuffix("+00:00").replace("T", " ")
    return str(value)


def _seconds(value: float) -> str:
    return f"{Decimal(repr(value)).normalize():f}s"


def _named_lines(values: Mapping[str, Any]) -> Iterable[str]:
    return (f"{name}={_value(value)}" for name, value in values.items())


def _line(value: Any) -> str:
    """Return a value as a line without a name."""
    shown = _value(value)
    return json.dumps(value) if _NAMED.fullmatch(shown) else shown


def _value(value: Any) -> str:
    """Return a value as it is written: a text as it is, if that is read as the same text, and otherwise JSON."""
    if isinstance(value, str) and value.isprintable() and value == value.strip():
        try:
            if value and _read_line("", f"x={value}") == ("x", value):
                return value
        except InvalidSchedule:
            pass
    shown = json.dumps(value, ensure_ascii=False)
    return shown if shown.isprintable() else json.dumps(value)


def line_of(schedule: Mapping[str, Any]) -> str:
    """Return a schedule as a person writes it; empty if that says less than the schedule, so that it stays as it is."""
    every, crontab = schedule.get("every"), schedule.get("crontab")
    if len(schedule) == 1 and isinstance(every, (int, float)) and every is not True and 0 < every < inf:
        return PeriodicTask("", "", schedule).when
    return crontab if len(schedule) == 1 and isinstance(crontab, str) else ""


def keeps_schedule(entry: PeriodicTask) -> bool:
    """Return whether a form without a schedule leaves it as it is, because nobody can write it."""
    return isinstance(entry.schedule, dict) and not line_of(entry.schedule)


def _given(entry: PeriodicTask) -> Mapping[str, Any]:
    return entry.schedule if isinstance(entry.schedule, dict) else {}


# -- seen before it is saved


def mark_of(form: Params) -> str:
    """Return a text that is another one if a field has changed: what was shown is what is saved."""
    given = encoded({name: form.get(name) for name in ("name", *FIELDS)})
    return blake2b(given.encode(), digest_size=12).hexdigest()


def is_seen(form: Params) -> bool:
    """Return whether a form comes with what was shown of it, or says that nobody wants to see that."""
    return form.get("confirmed") in ("yes", mark_of(form))

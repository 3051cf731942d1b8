"""Read the entries of RedBeat, for migration.

Source: redbeat 2.3 `RedBeatSchedulerEntry.save`, `RedBeatJSONEncoder`: a HASH an entry with its definition as JSON, a
ZSET `<prefix>:schedule` of their keys, and a SET `<prefix>:statics` of the names that come from the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq.basics.errors import InvalidSchedule, UnknownEntry
from celery_delayq.schedule.configured import configured
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.encoding import crontab_line
from celery_delayq.schedule.found import Found, found

#: Default prefix of RedBeat's keys; `redbeat_key_prefix` overrides it.
PREFIX = "redbeat:"


def entries(client: redis.Redis, app: Any, prefix: str = PREFIX) -> Iterator[Found]:
    """Yield all entries, sorted by name. Changes nothing.

    Raises:
        UnknownEntry: there are no entries.
        ConfigurationError: `beat_schedule` is not a dict.
    """
    if not client.exists(f"{prefix}:schedule"):
        raise UnknownEntry(f"found no RedBeat entries under {prefix}:schedule: check the prefix")
    keys = client.execute_command("ZRANGE", f"{prefix}:schedule", 0, -1, **{NEVER_DECODE: True})
    statics = client.execute_command("SMEMBERS", f"{prefix}:statics", **{NEVER_DECODE: True})
    own = configured(app)
    for key in sorted(keys):
        name = key.decode("utf-8", "surrogateescape").removeprefix(prefix)
        is_configured = name.encode("utf-8", "surrogateescape") in statics
        yield found(name, own, partial(_definition, client, key, name, app), is_configured=is_configured)


def _definition(client: redis.Redis, key: bytes, name: str, app: Any) -> Definition:
    raw = client.execute_command("HGET", key, "definition", **{NEVER_DECODE: True})
    if raw is None:
        raise InvalidSchedule("it has no definition")
    fields = json.loads(raw)
    timing = {} if fields.get("enabled", True) else {"enabled": False}
    given = {part: fields.get(part) for part in ("task", "args", "kwargs", "options")}
    definition = Definition.of(name, {**given, "schedule": _schedule(fields["schedule"]), "timing": timing}, app)
    # RedBeat's own encoding of datetimes and similar types; nothing here would decode it.
    if '"__type__"' in json.dumps((definition.args, definition.kwargs, definition.options)):
        raise InvalidSchedule("its arguments or options are not JSON types")
    return definition


def _schedule(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("__type__")
    if kind == "interval":
        return {"every": given["every"], "relative": bool(given.get("relative"))}
    if kind == "crontab":
        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        return {"crontab": crontab_line(given.get(name, "*") for name in names)}
    raise InvalidSchedule(f"schedules of type {kind!r} are not supported")

"""Records of periodic tasks that another program may have written."""

from __future__ import annotations

import json
from typing import Any

RECORD = {"fingerprint": "f", "since_ms": 1, "definition": {"task": "note", "schedule": {"every": 60}}}


def record(**fields: Any) -> str:
    """What another program may write as a record."""
    return json.dumps({**RECORD, **fields})


def defined(**fields: Any) -> str:
    return record(definition={**RECORD["definition"], **fields})  # type: ignore[dict-item]


#: Name -> record: none of them can be planned.
FOREIGN = {
    "text": "no JSON",
    "number": "5",
    "empty": "{}",
    "unknown field": record(**{"\udcff": 1}),
    "queue": record(queue="\udcff"),
    "earlier": record(queue="celery", earlier=["\udcff"]),
    "since": record(since_ms=10**400),
    "args": defined(args=5),
    "kwargs": defined(kwargs=[1]),
    "options": defined(options=[1]),
    "timing": defined(timing=[1]),
    "unexpected": defined(kwargs={"\udcff": 1}),
    "every": defined(schedule={"every": 10**400}),
    "infinite": defined(schedule={"every": float("inf")}),
    "nan": defined(schedule={"every": float("nan")}),
    "every nothing": defined(schedule={"every": None}),
    "empty field": defined(schedule={"crontab": ""}),
    "deep": defined(schedule={"crontab": json.loads("[" * 500 + "]" * 500)}),
    "zone": defined(timing={"tz": "\udcff"}),
    "task": defined(task="\udcff"),
    "no task": record(definition={}),
}

#: These can be: no arguments are none.
FOREIGN_GOOD = {"null": defined(args=None, kwargs=None, options=None, timing=None)}

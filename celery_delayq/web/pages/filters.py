"""What the URL of a list selects: the filter of waiting or ready tasks, and ids of any text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup

from celery_delayq.basics.times import parse_time, to_datetime
from celery_delayq.inspector.pages import Criteria
from celery_delayq.web.access import Refusal
from celery_delayq.web.request import FROM_BYTES, TO_BYTES, Params

#: Names of the fields.
FIELDS = ("state", "queue", "task", "due_after", "due_before", "text")

#: A longer id is no id that anybody chose. It is shown, but nothing can be done with it here.
LONGEST_ID = 500


class InvalidFilter(ValueError):
    """A field cannot be read. The message says which, and how to write it.

    Args:
        text: a sentence.
        values: values in it, see `Language.gettext`.
    """

    def __init__(self, text: str, **values: str) -> None:
        super().__init__(text % values if values else text)
        self.text = text
        self.values = values

    def said(self, gettext: Callable[..., Markup]) -> Markup:
        """Return the message in a user's language."""
        return gettext(self.text, **self.values)


def fields_of(query: Params) -> dict[str, str]:
    """Return the fields of a query that are not empty, as they were written."""
    return {name: value for name in FIELDS if (value := query.get(name)).strip()}


def criteria_of(fields: Mapping[str, str], now_ms: int) -> Criteria:
    """Return what the fields mean. The field of the task has a part of its name.

    Args:
        fields: as `fields_of` returns them.
        now_ms: to which relative times refer, unix time in ms.

    Raises:
        InvalidFilter: a field cannot be read.
    """
    times = ("due_after", "due_before")
    values: dict[str, Any] = {
        name: time_of(value.strip(), now_ms) if name in times else value for name, value in fields.items()
    }
    part = values.pop("task", None)
    try:
        return replace(Criteria.of(**values), task_part=part)
    except (TypeError, ValueError) as exc:
        raise InvalidFilter(str(exc)) from exc


def time_of(text: str, now_ms: int) -> datetime:
    """Return the time of a text: ISO 8601, in UTC unless it has a zone; or relative to now.

    Raises:
        InvalidFilter: it is not a time.
    """
    try:
        found = parse_time(text)
        return to_datetime(now_ms) + found if isinstance(found, timedelta) else found
    except (ValueError, OverflowError) as exc:
        raise InvalidFilter(
            "Cannot read '%(given)s' as a time: write 2030-12-31 23:59, or +30m, 2h, -15m.", given=text
        ) from exc


def id_key(task_id: str) -> str:
    """Return an id as text that every form can carry."""
    return quote(task_id, safe="", errors=TO_BYTES)


def ids_of(keys: Iterable[str]) -> list[str]:
    """Return the ids, each once; see `id_key`.

    Raises:
        Refusal: there is none.
    """
    ids = list(dict.fromkeys(unquote(key, errors=FROM_BYTES) for key in keys))
    if not ids:
        raise Refusal(400, "Nothing is selected. Go back, and select something.")
    return ids

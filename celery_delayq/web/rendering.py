"""Rendering: Jinja2 with the page's filters. All that is shown is escaped, cut, and without control characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from celery_delayq.basics.text import visible
from celery_delayq.basics.times import shown_span
from celery_delayq.web.request import Params, encoded
from celery_delayq.web.words import WEEKDAYS

#: What stands for nothing.
NONE = "\u2013"

#: The most characters of one value. Longer ones are cut.
MOST_CHARACTERS = 2000

#: A longer name is no name that anybody chose. It is shown, but no page can be asked for it.
LONGEST_NAME = 500

#: How many characters of JSON are made: more than any page shows. The indentation of hostile data may take gigabytes.
_MOST_JSON = 10_000


def _finalize(value: Any) -> Any:
    """Make a value safe to show; Jinja calls it for each, before it escapes HTML."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else cut(value, MOST_CHARACTERS)


def cut(value: object, most: int = 80, keep: str = "") -> str:
    """Return a value as text without control characters, see `visible`. If it is long, it ends with an ellipsis."""
    text = str(value)
    return visible(text, keep) if len(text) <= most else f"{visible(text[: most - 1], keep)}…"


def _breakable(value: object, most: int = 80) -> Markup:
    """Return a name, see `cut`, whose lines break after dots and underscores rather than inside words."""
    return Markup(re.sub(r"(?<=[._])(?![._]|$)", "<wbr>", escape(cut(value, most))))


def _number(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _when(when: datetime | None, both: bool = False, day: str = "") -> Markup:
    """Return a time in UTC. The script turns it into the viewer's own, or adds that; `day` is its day of the week."""
    if when is None:
        return Markup(NONE)
    when = when.astimezone(timezone.utc)
    machine, shown = when.isoformat(timespec="milliseconds"), when.strftime("%Y-%m-%d %H:%M:%S")
    marks = Markup("{}{}").format(Markup(" data-both" if both else ""), Markup(" data-day" if day else ""))
    return Markup('<time datetime="{}"{}>{} UTC</time>').format(machine, marks, f"{day} {shown}".lstrip())


def lateness(seconds: float | None) -> str:
    """Return a lateness in three digits at most."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds * 1000 < 100 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 100 else shown_span(timedelta(seconds=seconds))


def _size(size: int) -> str:
    if size < 1024:
        return f"{size:,} B"
    return f"{size / 1024:,.1f} kB" if size < 1024 * 1024 else f"{size / 1024 / 1024:,.1f} MB"


def lines(value: object, most: int = MOST_CHARACTERS) -> Markup:
    """Return text of several lines; see `cut`."""
    return escape(cut(value, most, keep="\n"))


def as_json(value: Any, indent: int | None = 2) -> str:
    """Return data as JSON for people. Only the beginning of it if that is too long for a page, or nested too deeply."""
    parts: list[str] = []
    length = 0
    try:
        for part in json.JSONEncoder(ensure_ascii=False, indent=indent, default=str).iterencode(value):
            parts.append(part)
            length += len(part)
            if length > _MOST_JSON:
                break
    except RecursionError:
        parts.append("…")
    return "".join(parts)


def _weekday(when: datetime) -> str:
    return WEEKDAYS[when.astimezone(timezone.utc).weekday()]


def _without(params: Iterable[tuple[str, str]], *names: str) -> dict[str, str]:
    return {name: value for name, value in params if name not in names}


def _field(name: str, form: Params) -> str:
    return form.get(name)


def _exact(value: object) -> Markup:
    """Return text for a field that people edit: as it is, but for what no page can hold."""
    return escape(str(value).encode("utf-8", "replace").decode())


def _url(path: str, params: Mapping[str, object] | None = None, **more: object) -> Markup:
    """Return a relative URL; see `encoded`."""
    query = encoded({**(params or {}), **more})
    return escape(f"{path}?{query}" if query else path)


ENVIRONMENT = Environment(
    loader=PackageLoader(__package__ or "celery_delayq.web"),
    autoescape=True,
    finalize=_finalize,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS = (cut, _breakable, _number, _when, lateness, _size, as_json, lines, _weekday, _without, _field, _exact)
ENVIRONMENT.filters.update({each.__name__.lstrip("_"): each for each in _FILTERS})
ENVIRONMENT.filters["left"] = shown_span
ENVIRONMENT.globals.update(url=_url, longest_name=LONGEST_NAME)


def render(template: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: name of a file in `templates`.
        values: what it shows.
    """
    return ENVIRONMENT.get_template(template).render(**values)

"""Texts, numbers and charts: whatever comes is carried, cut, and drawn."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.text import visible
from celery_delayq.web.charts import LEAST, bar_chart, labels_between, nice_time
from celery_delayq.web.pages.filters import InvalidFilter, id_key, ids_of, time_of
from celery_delayq.web.pages.overview import short_time
from celery_delayq.web.rendering import ENVIRONMENT, as_json, cut, lateness, lines, render
from celery_delayq.web.request import MOST_FIELDS, Params, encoded

#: All text that Python can have, also half surrogate pairs.
ANY = st.text(st.characters(exclude_categories=()))


@given(st.dictionaries(ANY.filter(bool), ANY))
def test_what_is_encoded_is_read_again(fields: dict[str, str]) -> None:
    text = encoded(fields)
    assert text.isascii()
    wanted = {name: value for name, value in fields.items() if value}
    for given_text in (text, text.encode()):
        params = Params(given_text)
        assert dict(params) == wanted
        assert all(params.get(name) == value for name, value in wanted.items())


@given(st.binary(max_size=200))
def test_any_bytes_are_read(raw: bytes) -> None:
    params = Params(raw)
    again = {f"{at}{name}": value for at, (name, value) in enumerate(params)}
    assert dict(Params(encoded(again))) == {name: value for name, value in again.items() if value}


def test_fields_come_in_order_and_may_come_twice() -> None:
    params = Params("a=1&b=&a=2&c")
    assert (params.get("a"), params.all("a"), params.get("x", "y")) == ("2", ["1", "2"], "y")
    assert list(params) == [("a", "1"), ("b", ""), ("a", "2"), ("c", "")]
    with pytest.raises(ValueError, match="fields"):
        Params("a&" * MOST_FIELDS + "a&a")


@given(st.lists(ANY, min_size=1))
def test_any_id_is_carried_by_a_form(ids: list[str]) -> None:
    assert ids_of(map(id_key, ids)) == list(dict.fromkeys(ids))
    assert all(id_key(one).isascii() for one in ids)


@given(ANY, st.integers(1, 100))
def test_a_text_is_cut_and_shows_what_hides(text: str, most: int) -> None:
    shown = cut(text, most)
    assert shown.isprintable()
    assert len(shown) <= 10 * most
    assert shown == (visible(text) if len(text) <= most else visible(text[: most - 1]) + "…")
    assert (shown == text) == (text.isprintable() and len(text) <= most)


@given(ANY)
def test_lines_keep_only_line_ends(text: str) -> None:
    shown = str(lines(text, 50))
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert "<" not in shown


@given(ANY, ANY)
def test_a_page_escapes_what_it_shows(title: str, text: str) -> None:
    assert error_page(title, text).count("<") == error_page("", "").count("<")


def error_page(title: str, text: str) -> str:
    return render(
        "error.html",
        title=title,
        text=text,
        _=lambda words: words,
        language="en",
        languages={},
        path="x",
        message=None,
        is_live=False,
        home=None,
        place=(),
        query=Params(),
    )


def test_data_may_be_anything() -> None:
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    assert len(as_json(deep)) < 20_000
    assert len(as_json(deep, None)) < 20_000
    assert as_json({"a": datetime(2030, 1, 1, tzinfo=timezone.utc)}) == '{\n  "a": "2030-01-01 00:00:00+00:00"\n}'
    while isinstance(deep, list) and deep:  # taken apart here: the interpreter would recurse
        deep = deep[0]


def test_of_wide_data_only_the_beginning_is_made() -> None:
    wide = [[[list(range(100))] * 100] * 100] * 100
    assert json.dumps(wide[0][0][0], indent=2).split()[:50] == as_json(wide[0][0][0]).split()[:50]
    assert len(as_json(wide)) < 20_000


def test_a_name_breaks_between_words() -> None:
    names = {
        "cancel_unpaid": "cancel_<wbr>unpaid",
        "shop.<b>": "shop.<wbr>&lt;b&gt;",
        "__x__": "__<wbr>x__",
        "a.b.": "a.<wbr>b.",
    }
    for name, shown in names.items():
        assert ENVIRONMENT.from_string("{{ name | breakable }}").render(name=name) == shown


def test_only_the_last_bar_may_be_open() -> None:
    assert [bar.is_open for bar in bar_chart([1, 2, 3], ["", "", ""], [], is_last_open=True).bars] == [
        False,
        False,
        True,
    ]
    assert not any(bar.is_open for bar in bar_chart([1, 2, 0], ["", "", ""], [], is_last_open=True).bars)


@given(st.lists(st.none() | st.floats(0, 1e15) | st.integers(0, 10**12), max_size=100))
def test_bars_stay_in_the_chart(values: list[float | None]) -> None:
    chart = bar_chart(values, [str(value) for value in values], [(50, "half")], unit=str)
    assert len(chart.bars) == sum(bool(value) for value in values)
    for bar in chart.bars:
        assert bar.x >= 0
        assert bar.x + bar.width <= 100
        assert bar.width > 0
        assert bar.height >= LEAST
        assert bar.y >= 0
        assert bar.y + bar.height <= 100.1
    heights = {value: bar.height for value, bar in zip(filter(None, values), chart.bars, strict=True)}
    assert [heights[value] for value in sorted(heights)] == sorted(heights.values())


@given(st.just(0.0) | st.floats(1e-4, 1e9))
def test_the_scale_of_a_lateness_has_round_times(seconds: float) -> None:
    top = nice_time(seconds)
    assert top >= seconds
    for value in (top, top / 2):
        assert re.fullmatch(r"[\d.e+]{1,6}(m|h|d| s| ms)", short_time(value)), short_time(value)


@pytest.mark.parametrize(
    ("seconds", "scale"),
    [
        (0, ("1 s", "500 ms")),
        (0.0042, ("6 ms", "3 ms")),
        (7, ("10 s", "5 s")),
        (31, ("1m", "30 s")),
        (100, ("2m", "1m")),
        (4000, ("2h", "1h")),
        (200_000, ("4d", "2d")),
    ],
)
def test_the_scale_of_some_latenesses(seconds: float, scale: tuple[str, str]) -> None:
    assert bar_chart([seconds], [""], [], unit=short_time, rounded=nice_time).scale == scale


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (timedelta(hours=1), ["10:10", "10:20", "10:30", "10:40", "10:50", "11:00"]),
        (timedelta(hours=8), ["11:00", "12:00", "13:00", "14:00", "15:00", "16:00", "17:00"]),
        (timedelta(days=1), ["12:00", "15:00", "18:00", "21:00", "01-31", "03:00", "06:00", "09:00"]),
        (timedelta(hours=72), ["12:00", "01-31", "12:00", "02-01", "12:00", "02-02"]),
        (timedelta(days=30), ["02-04", "02-11", "02-18", "02-25"]),
        (timedelta(days=365), ["2030-03", "2030-05", "2030-07", "2030-09", "2030-11", "2031-01"]),
    ],
    ids=str,
)
def test_labels_are_at_round_times(span: timedelta, labels: list[str]) -> None:
    start = datetime(2030, 1, 30, 10, 7, 13, tzinfo=timezone.utc)
    found = labels_between(start, start + span)
    assert [text for _, text in found] == labels
    assert [place for place, _ in found] == sorted(place for place, _ in found)
    assert all(0 < place < 100 for place, _ in found)


@given(st.integers(0, 220_000_000_000), st.integers(3600, 365 * 86400))
def test_there_are_few_labels(start_s: int, span_s: int) -> None:
    start = datetime.fromtimestamp(start_s, timezone.utc)
    assert len(labels_between(start, start + timedelta(seconds=span_s))) <= 9


@given(st.floats(0, 1e9))
def test_a_lateness_is_short(seconds: float) -> None:
    assert len(lateness(seconds)) <= 16


@given(ANY)
def test_a_time_is_read_or_refused(text: str) -> None:
    try:
        found = time_of(text, 1_900_000_000_000)
    except InvalidFilter:
        return
    assert found.tzinfo is not None

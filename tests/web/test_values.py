"""Texts, numbers and charts: whatever comes is carried, cut, and drawn."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.text import visible
from celery_delayq.web.charts import HEIGHT, LEFT, TOP, WIDTH, bar_chart
from celery_delayq.web.pages.filters import InvalidFilter, id_key, ids_of, time_of
from celery_delayq.web.rendering import as_json, cut, lateness, lines, render
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
        query=Params(),
    )


def test_data_may_be_anything() -> None:
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    assert as_json(deep) == "…"
    assert as_json({"a": datetime(2030, 1, 1, tzinfo=timezone.utc)}) == '{\n  "a": "2030-01-01 00:00:00+00:00"\n}'
    while isinstance(deep, list) and deep:  # taken apart here: the interpreter would recurse
        deep = deep[0]


@given(st.lists(st.none() | st.floats(0, 1e15) | st.integers(0, 10**12), max_size=100))
def test_bars_stay_in_the_chart(values: list[float | None]) -> None:
    chart = bar_chart(values, [str(value) for value in values], [(0, "first")], unit=str)
    assert len(chart.bars) == sum(bool(value) for value in values)
    for bar in chart.bars:
        assert bar.x >= LEFT
        assert bar.x + bar.width <= WIDTH + 0.2
        assert bar.width > 0
        assert bar.height >= 2
        assert bar.y >= TOP - 0.2
        assert bar.y + bar.height <= TOP + HEIGHT + 0.2
    heights = {value: bar.height for value, bar in zip(filter(None, values), chart.bars, strict=True)}
    assert [heights[value] for value in sorted(heights)] == sorted(heights.values())


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

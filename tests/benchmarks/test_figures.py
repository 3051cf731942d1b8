"""Figures: percentiles, ratios, targets, and the order of turns."""

from __future__ import annotations

import pytest

from tests.benchmarks.figures import OURS, STOCK, Figure, Target, in_turns, percentile
from tests.benchmarks.numbers import shown


def figure(stock: list[float], ours: list[float], target: Target | None = None) -> Figure:
    return Figure("rate", "calls/s", {STOCK: stock, OURS: ours}, target=target)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (1, 1.0), (50, 50.0), (95, 95.0), (99, 99.0), (99.5, 100.0), (100, 100.0)]
)
def test_a_percentile_is_one_of_the_values(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_the_percentiles_of_one_value_are_that_value() -> None:
    assert [percentile([7.0], percent) for percent in (0, 50, 99, 100)] == [7.0] * 4


def test_a_ratio_is_the_median_of_those_of_neighbours() -> None:
    assert figure([1.0, 10.0, 100.0], [2.0, 30.0, 100.0]).ratio(OURS) == 2.0


def test_the_baseline_and_a_figure_without_one_have_no_ratio() -> None:
    assert figure([1.0], [2.0]).ratio(STOCK) is None
    assert Figure("alone", "ms", {OURS: [1.0]}).ratio(OURS) is None
    assert figure([0.0], [2.0]).ratio(OURS) is None


@pytest.mark.parametrize(
    ("target", "ours", "reached"),
    [
        (Target(3.0), 3.0, True),
        (Target(3.0), 3.1, False),
        (Target(3.0, at_most=False), 2.9, False),
        (Target(1.5, ratio=True), 3.0, True),
        (Target(1.5, ratio=True), 3.1, False),
        (Target(2.0, at_most=False, ratio=True), 3.9, False),
        (None, 1.0, None),
    ],
)
def test_a_target_is_reached_or_not(target: Target | None, ours: float, reached: bool | None) -> None:
    assert figure([2.0], [ours], target).is_reached() is reached


def test_a_target_without_our_samples_is_neither() -> None:
    assert Figure("rate", "", {STOCK: [1.0]}, target=Target(1.0)).is_reached() is None


def test_a_bound_is_in_the_unit_of_the_samples() -> None:
    assert figure([4.0, 6.0, 5.0], [1.0], Target(2.0, ratio=True)).bound() == 10.0
    assert figure([4.0], [1.0], Target(2.0)).bound() == 2.0
    assert figure([4.0], [1.0]).bound() is None
    assert Figure("alone", "ms", {OURS: [1.0]}, target=Target(2.0, ratio=True)).bound() is None


def test_turns_change_their_order() -> None:
    called: list[str] = []
    results = in_turns(3, {name: lambda name=name: called.append(name) or len(called) for name in "ab"})  # type: ignore[misc]
    assert called == ["a", "b", "b", "a", "a", "b"]
    assert results == {"a": [1, 4, 5], "b": [2, 3, 6]}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.0, "12"), (1234.5, "1,234"), (123.45, "123.5"), (12.345, "12.35"), (0.0123, "0.01")],
)
def test_numbers_have_the_digits_that_mean_something(value: float, text: str) -> None:
    assert shown(value) == text

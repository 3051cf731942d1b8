"""What is measured: figures with several samples a variant, compared with a baseline and a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

T = TypeVar("T")
V = TypeVar("V")

#: The variants that most scenarios compare.
STOCK, OURS = "stock", "delayq"


@dataclass(frozen=True)
class Target:
    """What our variant should reach.

    Attributes:
        limit: the bound.
        at_most: whether it is an upper bound.
        ratio: whether it bounds the ratio to the baseline, not the figure itself.
    """

    limit: float
    at_most: bool = True
    ratio: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:,g}{' times' if self.ratio else ''}"

    def is_reached(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass
class Figure:
    """One figure, measured several times for each variant, in turns.

    Attributes:
        name: what it is.
        unit: of the samples.
        samples: variant -> its samples; those of one index were taken one right after the other.
        baseline: the variant that the others are compared with.
        target: what `OURS` should reach.
    """

    name: str
    unit: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    baseline: str = STOCK
    target: Target | None = None

    def add(self, variant: str, value: float) -> None:
        self.samples.setdefault(variant, []).append(value)

    def ratio(self, variant: str) -> float | None:
        """Return the median of the ratios to the baseline's sample of the same turn; None without a baseline.

        Neighbours share the machine's mood, so this is steadier than the ratio of two medians.
        """
        base = self.samples.get(self.baseline)
        if not base or variant == self.baseline:
            return None
        pairs = zip(self.samples[variant], base, strict=False)
        ratios = [value / other for value, other in pairs if other]
        return median(ratios) if ratios else None

    def bound(self) -> float | None:
        """Return the target in the unit of the samples; None if there is none, or no baseline for it."""
        if self.target is None:
            return None
        if not self.target.ratio:
            return self.target.limit
        base = self.samples.get(self.baseline)
        return self.target.limit * median(base) if base else None

    def is_reached(self) -> bool | None:
        """Return whether `OURS` reaches the target; None if there is none."""
        if self.target is None or not self.samples.get(OURS):
            return None
        value = self.ratio(OURS) if self.target.ratio else median(self.samples[OURS])
        return None if value is None else self.target.is_reached(value)


def in_turns(rounds: int, variants: Mapping[V, Callable[[], T]]) -> dict[V, list[T]]:
    """Call each variant once a round, the order reversed every other round; return all results by variant."""
    results: dict[V, list[T]] = {name: [] for name in variants}
    for turn in range(rounds):
        for name in list(variants)[:: -1 if turn % 2 else 1]:
            results[name].append(variants[name]())
    return results


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest of the values that is not less than `percent` of them."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]

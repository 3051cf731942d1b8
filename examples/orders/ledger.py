"""What should have happened to each order, and what did; pure bookkeeping, without Redis."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field

#: Where one class of lateness ends and the next begins, in ms.
LATENESS_CLASSES_MS = (1, 2, 3, 5, 10, 20, 50, 100, 1000)


@dataclass
class Order:
    """One order. Times are unix time in seconds.

    Attributes:
        id: the order's id.
        pay_within_s: how long its customer has to pay.
        pays_after_s: when its customer pays, counted from placing it; None: never.
        due: when it is to be cancelled; 0 until it is placed.
        pay_answer: what the shop answered to the payment; None: nobody has tried to pay.
        cancelled_at: each time its cancellation ran.
    """

    id: str
    pay_within_s: float
    pays_after_s: float | None
    due: float = 0.0
    pay_answer: bool | None = None
    cancelled_at: list[float] = field(default_factory=list)


class Ledger:
    """All orders of a story, and the questions that its summary answers."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = orders
        #: Tasks that workers held in memory after the last order was placed; None: no worker told.
        self.held_by_workers: int | None = None
        #: Tasks that waited in Redis at that moment.
        self.waited_then = 0

    @property
    def placed(self) -> list[Order]:
        """Orders that were placed."""
        return [order for order in self.orders if order.due]

    @property
    def paid(self) -> list[Order]:
        """Orders that were paid in time, so that their cancellation was taken back."""
        return [order for order in self.orders if order.pay_answer]

    @property
    def too_late(self) -> list[Order]:
        """Orders whose payment the shop refused, because their time was over."""
        return [order for order in self.orders if order.pay_answer is False]

    @property
    def cancelled(self) -> list[Order]:
        """Orders whose cancellation ran, once or more often."""
        return [order for order in self.orders if order.cancelled_at]

    @property
    def open(self) -> list[Order]:
        """Orders that were placed and neither paid nor cancelled; at the end of the story they are lost."""
        return [order for order in self.placed if not order.pay_answer and not order.cancelled_at]

    @property
    def cancelled_twice(self) -> list[Order]:
        """Orders whose cancellation ran more than once."""
        return [order for order in self.orders if len(order.cancelled_at) > 1]

    @property
    def paid_and_cancelled(self) -> list[Order]:
        """Orders that were cancelled although the shop had accepted their payment."""
        return [order for order in self.paid if order.cancelled_at]

    @property
    def early(self) -> list[Order]:
        """Orders that were cancelled before their time was over."""
        return [order for order in self.cancelled if order.cancelled_at[0] < order.due]

    @property
    def lateness_ms(self) -> list[float]:
        """From the end of an order's time to the start of its cancellation, sorted."""
        return sorted((order.cancelled_at[0] - order.due) * 1000 for order in self.cancelled)

    def all_right(self) -> bool:
        """Return whether every order ended as it should; lateness is reported, not judged."""
        return (
            len(self.placed) == len(self.orders)
            and self.held_by_workers == 0
            and not (self.open or self.cancelled_twice or self.paid_and_cancelled or self.early)
        )


def plan(count: int, longest_s: float, prefix: str) -> Ledger:
    """Make up orders to be paid within 1 to `longest_s` seconds.

    Four in ten customers pay in good time, one in ten pays at the last moment, when it is anybody's
    guess whether the payment or the cancellation is first, and five in ten never pay.
    """
    orders = []
    for number in range(count):
        pay_within_s = random.uniform(1, longest_s)
        pays_after_s = random.choices(
            [
                random.uniform(0.1, 0.9) * pay_within_s,
                random.gauss(-0.004, 0.004) + pay_within_s,
                None,
            ],
            weights=[4, 1, 5],
        )[0]
        orders.append(Order(f"{prefix}-{number:04}", pay_within_s, pays_after_s))
    return Ledger(orders)


def quantile(sorted_values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    return sorted_values[max(0, math.ceil(share * len(sorted_values)) - 1)]


def histogram(lateness_ms: list[float]) -> list[tuple[str, int]]:
    """Count values by class; returns label and count, from the first class to the last that has any."""
    counts = [0] * (len(LATENESS_CLASSES_MS) + 1)
    for value in lateness_ms:
        counts[bisect_right(LATENESS_CLASSES_MS, value)] += 1
    borders = (0, *LATENESS_CLASSES_MS)
    labels = [f"{low} to {high}" for low, high in zip(borders, LATENESS_CLASSES_MS, strict=False)]
    labels.append(f"over {LATENESS_CLASSES_MS[-1]}")
    filled = [number for number, count in enumerate(counts) if count]
    return list(zip(labels, counts, strict=True))[filled[0] : filled[-1] + 1] if filled else []

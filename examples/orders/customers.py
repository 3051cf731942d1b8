"""Customers who never stop: for the web page, which shows what waits.

python -m examples.orders.customers

Some orders of the last half hour are placed at once, then one or two a second, with 30 minutes to pay. Half of the
customers pay. It needs the Redis of `SHOP_REDIS`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time

from examples.orders import shop

#: How long a customer has to pay, in seconds, and how many orders are placed at once.
PAY_WITHIN_S, FIRST_ORDERS = 30 * 60, 300

#: The time between two orders, on average, in seconds.
PAUSE_S = 0.7


def main() -> None:
    """Place orders, and pay half of them, until the process is ended."""
    chance = random.Random(1)
    numbers = itertools.count(1001)
    for number in itertools.islice(numbers, FIRST_ORDERS):
        shop.place_order(f"order-{number}", pay_within_s=chance.uniform(5, PAY_WITHIN_S))
    payments: list[tuple[float, str]] = []
    for number in numbers:
        shop.place_order(f"order-{number}", pay_within_s=PAY_WITHIN_S)
        if chance.random() < 0.5:
            heapq.heappush(payments, (time.monotonic() + chance.uniform(2, 60), f"order-{number}"))
        next_order = time.monotonic() + chance.expovariate(1 / PAUSE_S)
        while payments and payments[0][0] < next_order:
            pays_at, order = heapq.heappop(payments)
            time.sleep(max(0.0, pays_at - time.monotonic()))
            shop.pay(order)
        time.sleep(max(0.0, next_order - time.monotonic()))


if __name__ == "__main__":
    main()

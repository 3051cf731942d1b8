"""Customers who never stop: for the web page, which shows what waits.

python -m examples.orders.customers

What a busy shop has is there at once, see `scene.py`; then one or two orders are placed a second, with 30 minutes to
pay. Half of the customers pay, and are asked by mail how they liked it. A few cards are refused. It needs the Redis of
`SHOP_REDIS`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time

from examples.orders import scene, shop

#: The time between two orders, on average, in seconds.
PAUSE_S = 0.7


def main() -> None:
    """Place orders, and pay half of them, until the process is ended."""
    chance = random.Random(1)
    scene.fill()
    payments: list[tuple[float, str]] = []
    for number in itertools.count(1001 + scene.ORDERS):
        shop.place_order(f"order-{number}", pay_within_s=scene.PAY_WITHIN_S)
        if chance.random() < 0.02:
            scene.charge.delay(f"order-{number}", chance.randrange(5_000, 99_000))
        if chance.random() < 0.5:
            heapq.heappush(payments, (time.monotonic() + chance.uniform(2, 60), f"order-{number}"))
        next_order = time.monotonic() + chance.expovariate(1 / PAUSE_S)
        while payments and payments[0][0] < next_order:
            pays_at, order = heapq.heappop(payments)
            time.sleep(max(0.0, pays_at - time.monotonic()))
            if shop.pay(order):
                scene.remind.apply_async((order,), countdown=chance.uniform(300, 3600), queue=scene.MAIL)
        time.sleep(max(0.0, next_order - time.monotonic()))


if __name__ == "__main__":
    main()

"""The story on a Redis Cluster: one of its nodes dies, and the orders of the others go on.

python -m examples.orders.cluster_story

It needs the cluster of `SHOP_CLUSTER`, the Redis of `SHOP_REDIS` and a worker, see README.md;
`examples.orders.demo cluster` brings all of them.
"""

from __future__ import annotations

import argparse
import signal
import sys
import uuid
from contextlib import closing

import kombu.exceptions
import redis

from examples.orders import cluster_shop as shop
from examples.orders.cluster_display import ClusterDisplay
from examples.orders.cluster_nodes import Nodes, NodeView
from examples.orders.ledger import Ledger, plan
from examples.orders.shop import JOURNAL
from examples.orders.story import play, wait_for_workers

#: A list in the shop's database: whoever runs the cluster kills the nodes that are named there.
KILL = "example-orders:kill"


def plan_by_city(count: int, longest_s: float) -> Ledger:
    """Make up orders in all cities, see `plan`."""
    ledger = plan(count, longest_s, prefix=uuid.uuid4().hex[:6])
    for number, order in enumerate(ledger.orders):
        order.id = f"{shop.CITIES[number % len(shop.CITIES)]}-{order.id}"
    return ledger


def pay(order_id: str) -> bool | None:
    """Pay; returns None if the shop cannot answer now, so that the customer tries again.

    `delayq.cancel` looks into all queues before it changes anything. So it fails while one of them is away.
    """
    try:
        return shop.pay(order_id)
    except (redis.RedisError, kombu.exceptions.OperationalError):
        return None


def kill(view: NodeView, display: ClusterDisplay) -> None:
    """Have a node killed, and tell so."""
    shop.database.rpush(KILL, view.address)
    display.killed(view)


def options_of(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; ends the process if it is wrong or asks for help."""
    parser = argparse.ArgumentParser(description="Play the story of the orders on a Redis Cluster.")
    parser.add_argument("--orders", type=int, default=300, help="how many (300)")
    parser.add_argument("--longest", type=float, default=14, help="longest time to pay, seconds (14)")
    parser.add_argument("--kill", action="store_true", help="name a node to kill, in the list example-orders:kill")
    options = parser.parse_args(arguments)
    if options.orders < 1 or options.longest < 1:
        parser.error("--orders and --longest must be 1 or more")
    return options


def main() -> int:
    """Play the story. Returns 0 if all was right, else 1."""
    options = options_of(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ledger = plan_by_city(options.orders, options.longest)
    try:
        shop.database.ping()
        with closing(Nodes(shop.CLUSTER.split(";"), shop.QUEUES)) as nodes:
            display = ClusterDisplay(nodes)
            command = f"celery -A examples.orders.cluster_shop worker -Q {','.join(shop.QUEUES)}"
            workers = wait_for_workers(set(shop.QUEUES), command, display)
            display.say(f"{options.orders} orders in {len(shop.CITIES)} cities, to be paid within 1 to "
                        f"{options.longest:g} s. Half of the customers never pay.")  # fmt: skip
            victim = max(nodes.views, key=lambda view: "example-orders-lisbon" in view.queues)
            with display:
                play(
                    ledger,
                    workers,
                    display,
                    count_waiting=lambda: nodes.waiting,
                    pay=pay,
                    when_placed=lambda: kill(victim, display) if options.kill else None,
                    patience_s=2.0,
                )
            shop.database.expire(JOURNAL, 3600)
    except (redis.RedisError, kombu.exceptions.OperationalError) as error:
        print(f"Cannot use the cluster at {shop.CLUSTER} (set SHOP_CLUSTER and SHOP_REDIS): {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped before the end.", file=sys.stderr)
        return 130
    display.summary(ledger)
    return 0 if ledger.all_right() else 1


if __name__ == "__main__":
    sys.exit(main())

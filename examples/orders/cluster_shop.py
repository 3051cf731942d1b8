"""The same shop on a Redis Cluster: another broker URL, and a queue for each city.

celery -A examples.orders.cluster_shop worker -Q example-orders-athens,example-orders-dublin,...

A queue is on one node, the one that serves its hash slot. So what spreads the orders over the nodes is that there are
several queues.
"""

import os
from typing import Any

from examples.orders.shop import app, cancel_unpaid, database, delayq, pay, place_order

__all__ = ["CITIES", "CLUSTER", "QUEUES", "app", "cancel_unpaid", "database", "delayq", "pay", "place_order"]

#: Some nodes of the cluster, as in "user:password@h1:6379;user:password@h2:6379"; the others are found through them.
CLUSTER = os.environ.get("SHOP_CLUSTER", "localhost:6379")

CITIES = ("athens", "dublin", "geneva", "lisbon", "paris", "rome")
QUEUES = tuple(f"example-orders-{city}" for city in CITIES)

app.conf.broker_url = ";".join(f"delayq+cluster://{node}" for node in CLUSTER.split(";"))


def by_city(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any], **_: Any) -> Any:
    """Send what concerns an order to the queue of its city: a router function, see Celery's `task_routes`."""
    return {"queue": f"example-orders-{args[0].partition('-')[0]}"} if args else None


app.conf.task_routes = (by_city,)

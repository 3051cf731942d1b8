"""A shop whose tasks are one of a kind, or take turns.

celery -A examples.unique.shop worker
"""

import os
import time

import redis
from celery import Celery

from celery_delayq import DelayQ, Throttle, Unique

REDIS = os.environ.get("SHOP_REDIS", "localhost:6379/0")

app = Celery("shop", broker=f"delayq://{REDIS}")
delayq = DelayQ(app)

# Only because this is an example: your Redis may serve other apps, whose tasks are theirs.
app.conf.task_default_queue = "example-unique"

# Stands for what your tasks really do. The journal tells what ran when.
database = redis.Redis.from_url(f"redis://{REDIS}", decode_responses=True)
JOURNAL = "example-unique:journal"


def edited(user: int, text: str, quiet_s: float = 600) -> None:
    """Remind a user ten minutes after the last edit: each edit takes the place of the one before."""
    remind.apply_async((user, text), countdown=quiet_s, unique=f"remind:{user}", on_conflict="replace")


def changed(cart: int, reason: str, soon_s: float = 60) -> bool:
    """Rebuild a cart soon. Returns False if a rebuild of it waits already."""
    return delayq.was_new(rebuild.apply_async((cart, reason), countdown=soon_s))


@app.task(ignore_result=True)
def remind(user: int, text: str) -> None:
    """Remind a user of the last edit."""
    write("remind", user, text)


@app.task(ignore_result=True, unique=Unique(by=("cart",)))
def rebuild(cart: int, reason: str) -> None:
    """Rebuild a cart, whatever the reasons were."""
    write("rebuild", cart, reason)


@app.task(ignore_result=True, throttle=Throttle("2/s", by=("customer",)))
def sync(customer: int) -> None:
    """Ask the partner about a customer, which may be done twice a second."""
    write("sync", customer, "")


def write(what: str, who: int, text: str) -> None:
    """Write down that a task ran."""
    database.xadd(JOURNAL, {"what": what, "who": who, "text": text, "at": time.time()}, maxlen=100_000)

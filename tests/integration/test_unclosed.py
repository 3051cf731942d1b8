"""kombu programs that never close their connections leave nothing behind, as with kombu's own transport."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from kombu import Connection

from tests.brokers import list_for
from tests.fetching.reading import bodies_on
from tests.integration.long_tasks import in_flight
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


def send(url: str, *bodies: int) -> None:
    with Connection(url) as connection:
        queue = connection.SimpleQueue("q")
        for body in bodies:
            queue.put(body)
        queue.close()


def run(url: str, code: str) -> str:
    """Run a program with a connection and a queue, which it does not close; return what it says."""
    code = f"{_CONNECT}connection = kombu.Connection({url!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


_CONNECT = """
import kombu
from celery_delayq.transport import register
register()
"""

TAKES_ONE = {
    "SimpleQueue": """
message = connection.SimpleQueue("q").get(timeout=20)
print(message.payload)
""",
    "basic_get": """
message = connection.default_channel.basic_get("q")
print(message.payload)
""",
    "prefetching": """
def on_message(body, message):
    globals()["message"] = message
    print(body)
consumer = connection.Consumer(kombu.Queue("q"), callbacks=[on_message], accept=["json"])
consumer.qos(prefetch_count=10)
consumer.consume()
connection.drain_events(timeout=20)
""",
}


@pytest.mark.parametrize("how", TAKES_ONE)
@pytest.mark.parametrize("does", ["acknowledges", "forgets"])
def test_a_program_that_takes_a_message_and_ends_leaves_the_others(
    broker_url: str, broker_client: redis.Redis, how: str, does: str
) -> None:
    """Its successor takes the next one, or the same if that was not acknowledged."""
    send(broker_url, *range(10))
    code = TAKES_ONE[how] + ("message.ack()\n" if does == "acknowledges" else "")
    for number in range(2):
        taken = number if does == "acknowledges" else 0
        assert run(broker_url, code) == f"{taken}\n"
        assert in_flight(broker_client) == 0
        left = range(taken + 1, 10) if does == "acknowledges" else range(10)
        assert bodies_on(broker_client, list_for(broker_client, "q")) == list(left)


def test_a_program_takes_no_more_than_it_asks_for(broker_url: str, broker_client: redis.Redis) -> None:
    send(broker_url, *range(10))
    with Connection(broker_url) as connection:
        assert connection.SimpleQueue("q").get(timeout=20).payload == 0
        assert in_flight(broker_client) == 1


@pytest.mark.one_server("connections are counted")
def test_a_program_that_has_closed_its_connection_opens_none_as_it_ends(
    broker_url: str, broker_client: redis.Redis
) -> None:
    port = broker_client.connection_pool.connection_kwargs["port"]
    code = f"""
queue = connection.SimpleQueue("q")
try:
    queue.get(timeout=0.5)
except queue.Empty:
    connection.close()
import redis
print(redis.Redis(port={port}).info("stats")["total_connections_received"])
"""
    before = int(run(broker_url, code))
    assert broker_client.info("stats")["total_connections_received"] == before


def test_a_dropped_connection_takes_nothing_and_its_threads_end(broker_url: str, broker_client: redis.Redis) -> None:
    def waits_in_vain() -> None:
        queue = Connection(broker_url).SimpleQueue("q")
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.3)

    def threads() -> int:
        """The number of threads of the system; `threading` does not know all."""
        return len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else threading.active_count()

    gc.collect()
    before = threads()
    waits_in_vain()
    gc.collect()
    wait_until(lambda: threads() <= before, "its threads end")
    send(broker_url, 1)
    assert bodies_on(broker_client, list_for(broker_client, "q")) == [1]
    assert in_flight(broker_client) == 0


def test_an_event_loop_may_call_what_a_lost_connection_left_to_it(broker_url: str) -> None:
    """A worker's connection failed before its event loop ran, and was collected: the next one runs the loop."""
    connection = Connection(broker_url)
    loops = connection.transport.loops
    del connection
    gc.collect()
    loops.ensure()
    assert loops.all == []

"""Watchdog: a process that loses its connections and lives on is not taken for one that was killed."""

from __future__ import annotations

import time

from celery_delayq.fetching import watchdog
from celery_delayq.fetching.consumer import Consumer
from tests.consumer.conftest import Consumers
from tests.consumer.lone import LONG_S, lone
from tests.soak.proxy import Proxy
from tests.state import now_ms
from tests.support import wait_until

#: The patience of watchdogs here, and a flap that is longer, in seconds.
SHORT_S, TOO_LONG_S = 1.0, 4.0


def from_elsewhere(id: str) -> bool | None:
    """What another machine knows of the processes here, see `process.is_running`."""
    return None


def refuse_for(proxy: Proxy, seconds: float) -> None:
    """Cut all connections, and let none be made for a while."""
    proxy.refuse()
    time.sleep(seconds)
    proxy.accept()


def assert_kept(consumers: Consumers, consumer: Consumer) -> None:
    """The consumer is there again, and still holds its message."""
    wait_until(lambda: consumers.is_visible(consumer), "it is connected again")
    assert consumers.in_flight(consumer) == [b"1"]
    assert consumers.waiting() == []
    assert consumers.score(consumer) > now_ms(consumers.client)
    assert consumer.renew()
    assert not consumer.is_lost


def test_elsewhere_five_seconds_without_a_connection_cost_nothing(consumers: Consumers, proxy: Proxy) -> None:
    here = consumers.start(lease_s=LONG_S, port=proxy.port)
    consumers.take(here, b"1")
    others = [consumers.start(lease_s=LONG_S, patience_s=watchdog.PATIENCE_S) for _ in range(2)]
    consumers.wait_until_seen(here.id)
    refuse_for(proxy, 5)
    assert_kept(consumers, here)
    assert not any(other.is_lost for other in others)


def test_a_killed_process_elsewhere_is_noticed(consumers: Consumers) -> None:
    consumers.start(lease_s=LONG_S, patience_s=SHORT_S)
    with lone(consumers, b"1", place="elsewhere") as process:
        process.kill()
        wait_until(consumers.waiting, "it is put back")


def test_beside_one_that_runs_keeps_its_lease_however_long_it_has_no_connection(
    consumers: Consumers, proxy: Proxy
) -> None:
    here = consumers.start(is_here=True, lease_s=LONG_S, port=proxy.port)
    consumers.take(here, b"1")
    consumers.start(lease_s=LONG_S, patience_s=SHORT_S)
    consumers.wait_until_seen(here.id)
    refuse_for(proxy, TOO_LONG_S)
    assert_kept(consumers, here)


def test_who_knows_that_one_runs_tells_those_who_cannot(consumers: Consumers, proxy: Proxy) -> None:
    here = consumers.start(is_here=True, lease_s=LONG_S, port=proxy.port)
    consumers.take(here, b"1")
    consumers.watch(consumers.make(lease_s=LONG_S), patience_s=SHORT_S, is_running=from_elsewhere)
    consumers.start(lease_s=LONG_S)
    consumers.wait_until_seen(here.id)
    refuse_for(proxy, TOO_LONG_S)
    assert_kept(consumers, here)


def test_who_knows_that_one_was_killed_is_told_by_those_who_cannot(consumers: Consumers) -> None:
    """It would not look for a long time, were it not told."""
    consumers.watch(consumers.make(lease_s=LONG_S), turn_s=LONG_S)
    consumers.watch(consumers.make(lease_s=LONG_S), patience_s=LONG_S, is_running=from_elsewhere)
    with lone(consumers, b"1") as process:
        process.kill()
        wait_until(consumers.waiting, "it is put back")


def test_one_that_cannot_subscribe_renews_and_is_kept(consumers: Consumers) -> None:
    """Its subscription alone is cut, and the server has no room for another connection."""
    consumers.start(lease_s=LONG_S, patience_s=SHORT_S)
    here = consumers.start(lease_s=LONG_S, client_name="here")
    consumers.take(here, b"1")
    consumers.wait_until_seen(here.id)
    limit = consumers.client.config_get("maxclients")["maxclients"]
    (subscription,) = [c for c in consumers.client.client_list(_type="pubsub") if c["name"] == "here"]
    consumers.client.config_set("maxclients", 1)  # who is connected stays
    try:
        consumers.client.client_kill_filter(_id=subscription["id"])
        before = consumers.score(here)
        wait_until(lambda: consumers.score(here) > before + 1000 * TOO_LONG_S, "it renews, again and again", 20)
        assert not consumers.is_visible(here)
    finally:
        consumers.client.config_set("maxclients", limit)
    assert_kept(consumers, here)


def test_a_newcomer_has_no_more_patience_with_those_who_were_gone_before_it_came(consumers: Consumers) -> None:
    """And each counts for itself: however many come and go meanwhile."""
    gone = consumers.make(lease_s=LONG_S)
    consumers.take(gone, b"1")
    consumers.start(lease_s=LONG_S, patience_s=SHORT_S)
    for _ in range(3):
        consumers.unwatch(consumers.start(lease_s=LONG_S, patience_s=LONG_S))
    wait_until(consumers.waiting, "it is put back")


def test_workers_that_live_for_a_moment_put_back_what_the_one_before_held(consumers: Consumers) -> None:
    """A crash loop: each lives for as long as it takes to notice, which is far less than its lease."""
    for number in range(3):
        message = b"%d" % number
        with lone(consumers, message) as process:
            process.kill()
        newcomer = consumers.start(lease_s=LONG_S, patience_s=LONG_S, redelivery=None)
        wait_until(lambda: consumers.waiting() == [message], "it is put back")  # noqa: B023
        consumers.unwatch(newcomer)
        consumers.client.delete("q")

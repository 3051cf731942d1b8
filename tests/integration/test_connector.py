"""The loop's own connections give up on a peer that accepts and says nothing."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import kombu
import pytest
import redis
from kombu.transport import redis as kombu_redis
from kombu.utils.objects import cached_property

from celery_delayq.transport import Transport, register
from celery_delayq.transport import connector as module
from celery_delayq.transport.connector import Connector

pytestmark = pytest.mark.one_server("it tries the URL in use only; see redis_cluster/test_hanging.py")


def test_a_silent_peer_does_not_hold_the_loop_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOCKET_TIMEOUT_S", 0.2)
    register()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect = Connector(kombu.Connection(f"delayq://127.0.0.1:{silent.getsockname()[1]}/0"))
        with pytest.raises(redis.TimeoutError), connect():
            pass


def test_a_timeout_of_the_user_is_kept(broker_url: str) -> None:
    register()
    given = kombu.Connection(broker_url, transport_options={"socket_timeout": 3})
    with Connector(given)() as client:
        options = client.get_connection_kwargs()
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (3, module.SOCKET_TIMEOUT_S)
    assert given.transport_options == {"socket_timeout": 3}


def test_it_takes_no_lock_that_other_connections_take(broker_url: str) -> None:
    """A child that is forked meanwhile would wait for it for ever."""
    register()
    connect = Connector(kombu.Connection(broker_url))
    answers = []

    def ask() -> None:
        with connect() as client:
            answers.append(client.ping())

    thread = threading.Thread(target=ask, daemon=True)
    with ExitStack() as stack:
        for owner in (kombu.Connection, kombu_redis.Channel, Transport, kombu_redis.QoS):
            for found in (vars(one) for one in owner.__mro__):
                for value in found.values():
                    if isinstance(value, cached_property):
                        stack.enter_context(value.lock)
        thread.start()
        thread.join(10)
        assert answers == [True]


@pytest.mark.parametrize(("failover", "ports"), [(False, (1, 1)), (True, (1, 2))])
def test_it_tries_once_and_only_the_url_in_use(failover: bool, ports: tuple[int, int]) -> None:
    """Loops have pauses of their own. kombu would sleep for 2 s, and then try the next URL."""
    register()
    urls = "delayq://127.0.0.1:1/0;delayq://127.0.0.1:2/0"
    connect = Connector(kombu.Connection(urls), failover=failover)
    for port in ports:
        with pytest.raises(redis.ConnectionError, match=rf"127\.0\.0\.1:{port}\b"), connect():
            pass

"""Servers that are not what the URL says: a Redis Sentinel, or a node of a Redis Cluster, behind a `delayq://` URL.

A server is asked what it is only after it has refused a command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from kombu.exceptions import OperationalError

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.queue.connections import LOST, is_cluster

_NODE = "this Redis is a node of a Redis Cluster: the broker URL has to start with delayq+cluster://, and not with delayq://"


def refuse_wrong_server(exc: Exception, client: redis.Redis) -> None:
    """Say what to do if the server of a `delayq://` URL has refused a command because it is of another kind.

    Args:
        exc: the error.
        client: of the server; nothing is done if it is one of a cluster.

    Raises:
        ConfigurationError: the server is a Redis Sentinel, or a node of a cluster.
    """
    if is_cluster(client):
        return
    while isinstance(exc, OperationalError) and isinstance(exc.__cause__, Exception):  # what the caller was doing
        exc = exc.__cause__
    from celery_delayq.queue.redirection import is_redirection, understood  # which a producer need not load otherwise

    error = understood(exc)
    if is_redirection(error) or isinstance(error, redis.exceptions.ClusterCrossSlotError):
        raise ConfigurationError(_NODE) from exc
    if "unknown command" not in str(exc):
        return
    try:
        info = client.info("server")
    except (redis.RedisError, *LOST):
        return
    try:
        refuse_mode(info)
    except ConfigurationError as advice:
        raise advice from exc


@contextmanager
def refusing_wrong_server(client: redis.Redis) -> Iterator[None]:
    """Do that for all errors of the block; see `refuse_wrong_server`."""
    try:
        yield
    except (redis.RedisError, OperationalError) as exc:
        refuse_wrong_server(exc, client)
        raise


def refuse_mode(info: Mapping[str, Any]) -> None:
    """Say what to do if the server of a `delayq://` URL is of another kind; otherwise do nothing.

    Args:
        info: its reply to INFO.

    Raises:
        ConfigurationError: the server is a Redis Sentinel, or a node of a cluster.
    """
    if info.get("redis_mode") == "cluster":
        raise ConfigurationError(_NODE)
    if info.get("redis_mode") == "sentinel":
        raise ConfigurationError(
            "this Redis is a Redis Sentinel: the broker URL has to start with delayq+sentinel://, and not with "
            "delayq://, and app.conf.broker_transport_options has to name the master: "
            '{"master_name": "mymaster"}'
        )

"""Setting: what a scene is like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Tasks a second.
RATE = 150.0


@dataclass(frozen=True)
class Setting:
    """What a scene is like.

    Attributes:
        pool: of the workers.
        lease_s: of the consumers.
        is_stock: stock Celery on kombu's own transport.
        has_proxy: the first worker reaches Redis through a proxy.
        has_sentinel: the broker has a replica and Redis Sentinel.
        replicas: how many replicas must have what a publisher takes for done.
        rate: tasks a second.
        delivery_limit: of the consumers.
        options: further options of `celery worker`.
        transport: further options of the transport.
        server: further options of Redis.
        has_periodic: periodic tasks run, too, with each option.
    """

    pool: str = "prefork"
    lease_s: float = 30.0
    is_stock: bool = False
    has_proxy: bool = False
    has_sentinel: bool = False
    replicas: int = 0
    rate: float = RATE
    delivery_limit: int = 20
    options: tuple[str, ...] = ()
    transport: Mapping[str, Any] = field(default_factory=dict)
    server: tuple[str, ...] = ()
    has_periodic: bool = False

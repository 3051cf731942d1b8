"""A Redis server of one's own: see `celery_delayq.testing.private_redis`."""

from celery_delayq.basics.text import name_and_version
from celery_delayq.testing.private_redis import (
    PrivateRedis,
    ServerNotFound,
    available_servers,
    dying_with_us,
    find_server,
)

__all__ = ["PrivateRedis", "ServerNotFound", "available_servers", "dying_with_us", "find_server", "name_and_version"]

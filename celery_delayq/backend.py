"""ClusterBackend: Celery's Redis result backend, on Redis Cluster.

Each result has a hash slot of its own, by its key. All keys of a chord share one: their names have `{group id}`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import redis
from celery.backends.redis import RedisBackend
from kombu.utils.url import maybe_sanitize_url
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.topology import Address, Topology, pool_at
from celery_delayq.errors import ConfigurationError


class ClusterBackend(RedisBackend):
    """Stores results on the nodes of a Redis Cluster. Celery makes it for `result_backend="delayq+cluster://..."`.

    Results are awaited on one node, any of them: Redis sends what is published to all nodes.

    Overrides of `RedisBackend` (Celery 5.6 and 5.7): `get_key_for_group`, `as_uri`, `_params_from_url`,
    `_create_client`.

    Raises:
        ConfigurationError: the URL names a database other than 0.
    """

    #: The nodes to start from.
    _seeds: tuple[Address, ...] = (Address("localhost", 6379),)

    def get_key_for_group(self, group_id: Any, key: str = "") -> Any:
        """Return a key of a group or chord, see Celery."""
        return super().get_key_for_group(f"{{{group_id}}}" if group_id else group_id, key)

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, with or without passwords, see Celery."""
        uris = (self.url or "").split(";")
        return ";".join(uris if include_password else map(maybe_sanitize_url, uris))

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        hosts = [
            super(ClusterBackend, self)._params_from_url(f"{_PLAIN[scheme]}://{rest}", defaults)
            for scheme, _, rest in (chunk.partition("://") for chunk in url.split(";"))
        ]
        self._seeds = tuple(Address(host["host"], int(host["port"])) for host in hosts)
        params: dict[str, Any] = hosts[0]
        if params["db"]:
            raise ConfigurationError(f"Redis Cluster has database 0 only: remove /{params['db']} from result_backend")
        return params

    def _create_client(self, **params: Any) -> redis.Redis:
        # Celery repeats what failed; redis-py must not do it, too.
        return Routed(Topology(self._seeds, partial(pool_at, {**params, "retry": Retry(NoBackoff(), 0)})))


#: Scheme in the URL -> scheme of a single server.
_PLAIN = {"delayq+cluster": "redis", "delayqs+cluster": "rediss"}

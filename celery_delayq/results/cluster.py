"""ClusterBackend: Celery's Redis result backend, on Redis Cluster.

Each result has a hash slot of its own, by its key. All keys of a chord share one: their names have `{group id}`.

While a node is away, a worker that has to store something there waits for its successor. Celery repeats only what it
writes, and reads first, so the results of that time would be lost.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import redis
from celery.backends.redis import RedisBackend, ResultConsumer
from kombu.utils.url import maybe_sanitize_url
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.node import Address, pool_at
from celery_delayq.cluster.topology import Topology

#: How often a process that awaits results looks who is a master, in seconds.
_LOOK_S = 5.0


class ClusterResultConsumer(ResultConsumer):
    """Awaits results at one of the masters: Redis sends what is published to all nodes.

    A node that hangs ends no connection, but sends nothing either. So this one looks whether it is still a master.

    Overrides `drain_events` of `ResultConsumer` (Celery 5.6 and 5.7).
    """

    def drain_events(self, timeout: float | None = None) -> None:
        """Wait for news of results, see Celery."""
        if self._is_replaced():
            self._ensure(self._reconnect_pubsub, ())
        super().drain_events(timeout)

    def _is_replaced(self) -> bool:
        connection = getattr(self._pubsub, "connection", None)
        if connection is None:
            return False
        topology = self.backend.client.topology
        with suppress(redis.RedisError, ConfigurationError, OSError):
            topology.refresh_if_older(_LOOK_S)
        return Address(connection.host, int(connection.port)) not in {node.address for node in topology.masters()}


class ClusterBackend(RedisBackend):
    """Stores results on the nodes of a Redis Cluster. Celery makes it for `result_backend="delayq+cluster://..."`.

    Overrides of `RedisBackend` (Celery 5.6 and 5.7): `get_key_for_group`, `as_uri`, `retry_policy`, `_store_result`,
    `on_chord_part_return`, `_params_from_url`, `_create_client`.

    Raises:
        ConfigurationError: the URL names a database other than 0.
    """

    ResultConsumer = ClusterResultConsumer

    #: The nodes to start from.
    _seeds: tuple[Address, ...] = (Address("localhost", 6379),)

    def get_key_for_group(self, group_id: Any, key: str = "") -> Any:
        """Return a key of a group or chord, see Celery."""
        return super().get_key_for_group(f"{{{group_id}}}" if group_id else group_id, key)

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, with or without passwords, see Celery."""
        uris = (self.url or "").split(";")
        return ";".join(uris if include_password else map(maybe_sanitize_url, uris))

    @property
    def retry_policy(self) -> dict[str, Any]:
        """How often what failed is repeated, see Celery; by default, long enough for a failover."""
        given = self._transport_options.get("retry_policy", {})
        return {**super().retry_policy, "max_retries": given.get("max_retries", _RETRIES)}

    def _store_result(self, task_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._store_result(task_id, *args, **kwargs)
        except self.connection_errors:
            self._wait_for(self.get_key_for_task(task_id))
            return super()._store_result(task_id, *args, **kwargs)

    def on_chord_part_return(self, request: Any, state: str, result: Any, *args: Any, **kwargs: Any) -> None:
        """Count a finished task of a chord, see Celery."""
        if request.group:  # counting is not repeated: it may send the body of the chord
            self._wait_for(self.get_key_for_group(request.group, ".s"))
        super().on_chord_part_return(request, state, result, *args, **kwargs)

    def _wait_for(self, key: Any) -> None:
        """Wait until there is a node for a key.

        Raises:
            redis.RedisError: there was none for as long as `retry_policy` says.
        """
        self.ensure(self.get, (key,))

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
        params["retry"] = Retry(NoBackoff(), 0)
        return Routed(Topology(self._seeds, partial(pool_at, params)))


#: Celery pauses for a second each time. By default, a node is taken for dead after 15 s, and elections take some more.
_RETRIES = 40

#: Scheme in the URL -> scheme of a single server.
_PLAIN = {"delayq+cluster": "redis", "delayqs+cluster": "rediss"}

"""Result backends for `delayq` URLs: Celery's own Redis backends, on the same servers as the broker.

For Redis Cluster, which Celery does not support, see `celery_delayq.results.cluster`.

Celery finds these functions through the entry points `celery.result_backends`, in every process. It passes the part of
the URL after the first `+` of the scheme: `socket:///path` for `delayq+socket:///path`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from celery.backends.redis import RedisBackend, SentinelBackend
from redis.sentinel import SentinelManagedConnection

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.options.settings import check_master_name, sentinel_options
from celery_delayq.transport.known import known

_KNOWN = (
    "use delayq://, delayq+socket://, delayq+sentinel:// or delayq+cluster://; delayqs://, delayqs+sentinel:// or "
    "delayqs+cluster:// for TLS"
)


class SentinelResults(SentinelBackend):
    """Celery's backend for Redis Sentinel, which soon asks the next sentinel if one does not answer.

    Otherwise each publication would wait for it, since Celery prepares for its result.

    Overrides `_transport_options` of `RedisBackend` (Celery 5.6 and 5.7).
    """

    #: Options of connections to the sentinels that a subclass adds.
    _more_sentinel_kwargs: Mapping[str, Any] = {}

    @property
    def _transport_options(self) -> dict[str, Any]:
        given: dict[str, Any] = super()._transport_options
        options = {**sentinel_options(), **self._more_sentinel_kwargs, **(given.get("sentinel_kwargs") or {})}
        return {**given, "sentinel_kwargs": options}


class SentinelResultsOverTLS(SentinelResults):
    """The same over TLS, to the sentinels and to the master, with the options of the first URL.

    Certificates are verified, unless `ssl_cert_reqs` in the URL or in `redis_backend_use_ssl` turns that off.

    Overrides `_params_from_url` of `SentinelBackend` (Celery 5.6 and 5.7).
    """

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = super()._params_from_url(url, defaults)
        given = {name: value for name, value in params["hosts"][0].items() if name.startswith("ssl_")}
        tls = {"ssl_cert_reqs": "required", **given}
        if isinstance(tls["ssl_cert_reqs"], str):  # Celery knows CERT_NONE and none, redis-py the latter only
            tls["ssl_cert_reqs"] = tls["ssl_cert_reqs"].removeprefix("CERT_").lower()
        self._more_sentinel_kwargs = {"ssl": True, **tls}
        return {**params, **tls, "connection_class": self.connection_class_ssl}


def backend(app: Any, url: str | None = None, **options: Any) -> RedisBackend:
    """Return the backend of an app for a URL that started with `delayq`. Celery calls it.

    Args:
        app: the Celery app.
        url: URL of the result backend; None for Celery's settings `redis_host` and so on.
        options: options of Celery's backend.

    Raises:
        ConfigurationError: the scheme is unknown, or the URL names several servers. A result backend supports no
            failover except Sentinel. Or it is the URL of Sentinels, and nothing names the master.
    """
    if url is None:
        return _known(RedisBackend(app=app, **options))
    if ";delayqs+" in url:  # if one of several hosts asks for TLS, no other is told anything in the clear
        return backend_over_tls(app, url, **options)
    scheme, _, rest = url.partition("://")
    if scheme == "sentinel":
        return _sentinel_backend(SentinelResults, app, url, options)
    if scheme == "cluster":
        return _cluster_backend(app, f"delayq+{url.removeprefix('delayq+')}", options)
    _refuse_several(url)
    if scheme not in ("delayq", "socket"):
        raise ConfigurationError(f"unknown scheme delayq+{scheme}:// in result_backend: {_KNOWN}")
    return _known(RedisBackend(app=app, url=f"redis://{rest}" if scheme == "delayq" else url, **options))


def backend_over_tls(app: Any, url: str | None = None, **options: Any) -> RedisBackend:
    """Return the backend of an app for a URL that started with `delayqs`. Celery calls it; see `backend`.

    Certificates are verified, unless `ssl_cert_reqs` in the URL or in `redis_backend_use_ssl` turns that off.
    """
    scheme, _, rest = (url or "delayqs://").partition("://")
    if scheme == "sentinel":
        return _sentinel_backend(SentinelResultsOverTLS, app, f"{scheme}://{rest}", options)
    if scheme == "cluster":
        urls = f"delayqs+{url}".replace(";delayq+", ";delayqs+").split(";")
        return _cluster_backend(app, ";".join(_verified(app, it) for it in urls), options)
    _refuse_several(rest)
    if scheme != "delayqs":
        raise ConfigurationError(f"unknown scheme delayqs+{scheme}:// in result_backend: {_KNOWN}")
    return _known(RedisBackend(app=app, url=_verified(app, f"rediss://{rest}"), **options))


def _verified(app: Any, url: str) -> str:
    """Return a URL whose certificates are verified: Celery has no default."""
    query = urlsplit(url).query
    if "ssl_cert_reqs" in {*parse_qs(query), *(app.conf.redis_backend_use_ssl or ())}:
        return url
    return f"{url}{'&' if query else '?'}ssl_cert_reqs=required"


def _sentinel_backend(kind: type[SentinelResults], app: Any, url: str, options: dict[str, Any]) -> RedisBackend:
    setting = "result_backend_transport_options"
    check_master_name(app.conf[setting], setting, "result_backend is a URL")
    url = re.sub(r"delayqs?\+sentinel://", "sentinel://", url)
    return _known(kind(app=app, url=url, **options), SentinelManagedConnection)


def _cluster_backend(app: Any, url: str, options: dict[str, Any]) -> RedisBackend:
    from celery_delayq.results.cluster import ClusterBackend  # not on a single server

    return _known(ClusterBackend(app=app, url=url, **options))


def _known(backend: RedisBackend, by_default: type = redis.Connection) -> RedisBackend:
    """Return a backend whose connections a forked child closes, see `transport.known`."""
    params = backend.connparams
    params["connection_class"] = known(params.get("connection_class", by_default))
    return backend


def _refuse_several(url: str) -> None:
    if ";" in url:
        raise ConfigurationError(
            "result_backend must be the URL of one server, of Sentinels (delayq+sentinel://) or of a cluster "
            "(delayq+cluster://)"
        )

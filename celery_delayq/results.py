"""Result backends for `delayq` URLs: Celery's own Redis backends, on the same servers as the broker.

Celery finds these functions through the entry points `celery.result_backends`, in every process. It passes the part of
the URL after the first `+` of the scheme: `socket:///path` for `delayq+socket:///path`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery.backends.redis import RedisBackend, SentinelBackend

from celery_delayq.errors import ConfigurationError

_KNOWN = "use delayq://, delayqs://, delayq+socket:// or delayq+sentinel://"


def backend(app: Any, url: str | None = None, **options: Any) -> RedisBackend:
    """Return the backend of an app for a URL that started with `delayq`. Celery calls it.

    Args:
        app: the Celery app.
        url: URL of the result backend; None for Celery's settings `redis_host` and so on.
        options: options of Celery's backend.

    Raises:
        ConfigurationError: the scheme is unknown, or the URL names several servers. A result backend supports no
            failover except Sentinel.
    """
    if url is None:
        return RedisBackend(app=app, **options)
    scheme, _, rest = url.partition("://")
    if scheme == "sentinel":
        return SentinelBackend(app=app, url=url.replace("delayq+sentinel://", "sentinel://"), **options)
    _refuse_several(url)
    if scheme not in ("delayq", "socket"):
        raise ConfigurationError(f"unknown scheme delayq+{scheme}:// in result_backend: {_KNOWN}")
    return RedisBackend(app=app, url=f"redis://{rest}" if scheme == "delayq" else url, **options)


def backend_over_tls(app: Any, url: str | None = None, **options: Any) -> RedisBackend:
    """Return the backend of an app for a URL that started with `delayqs`. Celery calls it; see `backend`.

    Certificates are verified, unless `ssl_cert_reqs` in the URL or in `redis_backend_use_ssl` turns that off.
    """
    scheme, _, rest = (url or "delayqs://").partition("://")
    _refuse_several(rest)
    if scheme != "delayqs":
        raise ConfigurationError(f"unknown scheme delayqs+{scheme}:// in result_backend: {_KNOWN}")
    query = urlsplit(f"//{rest}").query
    if "ssl_cert_reqs" not in {*parse_qs(query), *(app.conf.redis_backend_use_ssl or ())}:
        rest += f"{'&' if query else '?'}ssl_cert_reqs=required"  # Celery has no default
    return RedisBackend(app=app, url=f"rediss://{rest}", **options)


def _refuse_several(url: str) -> None:
    if ";" in url:
        raise ConfigurationError("result_backend must be the URL of one server, or of Sentinels (delayq+sentinel://)")

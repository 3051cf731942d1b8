"""Result backends by `delayq` URLs: Celery's own for Redis, on the same servers as the broker.

Celery finds these functions by the entry points `celery.result_backends`, in every process, whatever it imports. They
are given what comes behind the first `+` of a scheme: `socket:///path` of `delayq+socket:///path`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery.backends.redis import RedisBackend, SentinelBackend

from celery_delayq.errors import ConfigurationError

_KNOWN = "use delayq://, delayqs://, delayq+socket:// or delayq+sentinel://"


def backend(app: Any, url: str | None = None, **options: Any) -> RedisBackend:
    """Return the backend of an app for a URL that began with `delayq`; for Celery.

    Args:
        app: the Celery app.
        url: of the result backend; None for Celery's settings `redis_host` and so on.
        options: of Celery's backend.

    Raises:
        ConfigurationError: an unknown scheme, or several servers: a result backend has no failover but Sentinel's.
    """
    if url is None:
        return RedisBackend(app=app, **options)
    scheme, _, rest = url.partition("://")
    if scheme == "sentinel":
        return SentinelBackend(app=app, url=url.replace("delayq+sentinel://", "sentinel://"), **options)
    _refuse_several(url)
    if scheme not in ("delayq", "socket"):
        raise ConfigurationError(f"unknown scheme of result_backend, delayq+{scheme}://: {_KNOWN}")
    return RedisBackend(app=app, url=f"redis://{rest}" if scheme == "delayq" else url, **options)


def backend_over_tls(app: Any, url: str | None = None, **options: Any) -> RedisBackend:
    """Return the backend of an app for a URL that began with `delayqs`; for Celery. See `backend`.

    Certificates are verified unless `ssl_cert_reqs` says otherwise, in the URL or in `redis_backend_use_ssl`.
    """
    scheme, _, rest = (url or "delayqs://").partition("://")
    _refuse_several(rest)
    if scheme != "delayqs":
        raise ConfigurationError(f"unknown scheme of result_backend, delayqs+{scheme}://: {_KNOWN}")
    query = urlsplit(f"//{rest}").query
    if "ssl_cert_reqs" not in {*parse_qs(query), *(app.conf.redis_backend_use_ssl or ())}:
        rest += f"{'&' if query else '?'}ssl_cert_reqs=required"  # Celery has no default
    return RedisBackend(app=app, url=f"rediss://{rest}", **options)


def _refuse_several(url: str) -> None:
    if ";" in url:
        raise ConfigurationError(
            "result_backend takes the URL of one server, or those of Sentinels, delayq+sentinel://"
        )

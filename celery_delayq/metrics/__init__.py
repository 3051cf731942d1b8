"""Numbers for operators, in the form of Prometheus.

What workers count:

    recorder     what one process has counted
    flusher      adds it to Redis

At each scrape of Prometheus:

    snapshot     reads queues, totals and periodic tasks
    source       a connection that lasts from one scrape to the next
    collector    turns a snapshot into metrics
    endpoint     WSGI and ASGI apps

Only `collector` and `endpoint` need `prometheus_client`.
"""

from __future__ import annotations

from typing import Any

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.text import how_to_install

__all__ = ["make_asgi_app", "make_wsgi_app"]


def make_wsgi_app(app: Any) -> Any:
    """Return a WSGI app that answers with the metrics of a Celery app's broker, read at each request.

    It neither connects nor reads the configuration before the first request. If Redis is away, or the broker URL is not
    a `delayq://` URL, it answers 503 with a sentence. Any path will do, and everybody who can reach it may read.

    Raises:
        ConfigurationError: prometheus_client is not installed.
    """
    return endpoint_module().wsgi_app(app)


def make_asgi_app(app: Any) -> Any:
    """Return an ASGI app that does the same. It reads in a thread, so it does not hold up the event loop.

    Raises:
        ConfigurationError: see `make_wsgi_app`.
    """
    return endpoint_module().asgi_app(app)


def endpoint_module() -> Any:
    """Return the module `endpoint`, which needs prometheus_client.

    Raises:
        ConfigurationError: prometheus_client is not installed.
    """
    try:
        from celery_delayq.metrics import endpoint
    except ImportError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "prometheus_client":
            raise
        raise ConfigurationError(
            f"metrics need prometheus_client: {how_to_install('metrics', 'prometheus-client')}"
        ) from exc
    return endpoint

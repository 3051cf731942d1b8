"""Server: waitress, for the command `celery delayq web`."""

from __future__ import annotations

from typing import Any

from waitress.server import create_server

from celery_delayq.web.request import MOST_BODY
from celery_delayq.web.site import Site
from celery_delayq.web.wsgi import wsgi_app

#: How many requests are answered at once. Others wait.
_THREADS = 4


def server_at(host: str, port: int, site: Site) -> Any:
    """Return an HTTP server that has bound its port: call `run`, and from a signal handler `close`.

    Raises:
        OSError: the port is taken, or the address is not one of this machine.
    """
    return create_server(
        wsgi_app(site),
        host=host,
        port=port,
        threads=_THREADS,
        ident="celery_delayq",
        max_request_body_size=2 * MOST_BODY,
        clear_untrusted_proxy_headers=True,
    )

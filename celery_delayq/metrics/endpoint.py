"""The endpoint: WSGI and ASGI apps that read Redis at each request. What they answer with is prometheus_client's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client
from prometheus_client.exposition import ThreadingWSGIServer

from celery_delayq.metrics.collector import registry_of, text_of
from celery_delayq.metrics.source import Source, Unavailable

#: How many scrapes of an ASGI app wait for Redis at once; they take turns.
_ASGI_THREADS = 2

__all__ = ["asgi_app", "server_at", "text_of", "wsgi_app"]

_PLAIN = "text/plain; charset=utf-8"

_METHODS = ("GET", "HEAD")

#: How long a client may be silent before its request is complete, in seconds, and how many may wait to be heard.
_REQUEST_S, _BACKLOG = 10.0, 128


def wsgi_app(app: Any, source: Source | None = None) -> Any:
    """Return a WSGI app, see `make_wsgi_app`."""
    source = source or Source(app)

    def metrics(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in _METHODS:
            start_response("405 Method Not Allowed", [("Allow", ", ".join(_METHODS))])
            return [b""]
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        try:
            registry = registry_of(source.read())
        except Unavailable as exc:
            start_response("503 Service Unavailable", [("Content-Type", _PLAIN)])
            return [b"" if is_head else f"{exc}\n".encode()]
        environ = {**environ, "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
        answer: Iterable[bytes] = prometheus_client.make_wsgi_app(registry)(environ, start_response)
        return [b""] if is_head else answer

    return metrics


def asgi_app(app: Any) -> Any:
    """Return an ASGI app, see `make_asgi_app`."""
    wsgi = wsgi_app(app)
    # Not the executor of the event loop: a server that hangs must not take its threads from other pages.
    threads = ThreadPoolExecutor(_ASGI_THREADS, "delayq-metrics")

    async def metrics(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        assert scope["type"] == "http"
        for message in await asyncio.get_running_loop().run_in_executor(threads, _answer_to, scope, wsgi):
            await send(message)

    return metrics


def _answer_to(scope: dict[str, Any], wsgi: Any) -> list[dict[str, Any]]:
    """Return the messages of ASGI with which a WSGI app answers. It takes a while, in a thread."""
    environ = {"REQUEST_METHOD": scope["method"], "PATH_INFO": "/"}
    for name, value in scope["headers"]:
        variable = f"HTTP_{name.decode('latin-1').upper().replace('-', '_')}"
        environ[variable] = ",".join(filter(None, (environ.get(variable), value.decode("latin-1"))))
    begin: dict[str, Any] = {"type": "http.response.start"}

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        begin["status"] = int(status.partition(" ")[0])
        begin["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    body = b"".join(wsgi(environ, start_response))
    return [begin, {"type": "http.response.body", "body": body}]


class _Silent(WSGIRequestHandler):
    """Writes no line for each request, and none for a client that is too slow or goes away."""

    timeout = _REQUEST_S

    def handle(self) -> None:
        """Answer a request."""
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing."""


def server_at(host: str, port: int, source: Source) -> WSGIServer:
    """Return an HTTP server that has bound its port; call `serve_forever`.

    Raises:
        OSError: the port is taken, or the address is not one of this machine.
    """

    class Server(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        request_queue_size = _BACKLOG

    return make_server(host, port, wsgi_app(None, source), Server, handler_class=_Silent)

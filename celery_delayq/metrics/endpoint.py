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
    source = Source(app)
    # Not the executor of the event loop: a server that hangs must not take its threads from other pages.
    threads = ThreadPoolExecutor(_ASGI_THREADS, "delayq-metrics")

    async def metrics(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        assert scope["type"] == "http"
        is_head = scope["method"] == "HEAD"

        async def answer(message: dict[str, Any]) -> None:
            await send({**message, "body": b""} if is_head and "body" in message else message)

        async def refuse(status: int, header: tuple[bytes, bytes], body: str) -> None:
            await answer({"type": "http.response.start", "status": status, "headers": [header]})
            await answer({"type": "http.response.body", "body": body.encode()})

        if scope["method"] not in _METHODS:
            await refuse(405, (b"allow", ", ".join(_METHODS).encode()), "")
            return
        try:
            messages = await asyncio.get_running_loop().run_in_executor(threads, _answer_to, scope, source)
        except Unavailable as exc:
            await refuse(503, (b"content-type", _PLAIN.encode()), f"{exc}\n")
            return
        for message in messages:
            await answer(message)

    return metrics


def _answer_to(scope: dict[str, Any], source: Source) -> list[dict[str, Any]]:
    """Read, and return the messages with which prometheus_client's ASGI app answers. It takes a while, in a thread.

    Raises:
        Unavailable: see `Source.read`.
    """
    app, messages = prometheus_client.make_asgi_app(registry_of(source.read())), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(app({**scope, "method": "GET", "query_string": b""}, receive, send))
    return messages


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
        address_family = _family(host)
        request_queue_size = _BACKLOG

    return make_server(host, port, wsgi_app(None, source), Server, handler_class=_Silent)


def _family(host: str) -> Any:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

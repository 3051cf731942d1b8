"""ASGI: the page for asynchronous web servers, in threads of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery_delayq.web.access import basic_user
from celery_delayq.web.request import MOST_BODY, Params, Request, Response
from celery_delayq.web.site import Site

#: How many requests are answered at once. Others wait.
_THREADS = 4


def asgi_app(site: Site) -> Any:
    """Return an ASGI app."""
    # Not the executor of the event loop: a server that hangs must not take its threads from other pages.
    threads = ThreadPoolExecutor(_THREADS, "delayq-web")

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        assert scope["type"] == "http"
        body = await _body(receive)
        try:
            if body is None:
                raise ValueError("the form is too long")
            request = _request(scope, body)
        except ValueError as exc:
            response = Response(400, str(exc).encode(), {"Content-Type": "text/plain; charset=utf-8"})
        else:
            response = await asyncio.get_running_loop().run_in_executor(threads, site.handle, request)
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    return application


async def _body(receive: Any) -> bytes | None:
    """Return the body; None if it is too long."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client is gone
            return body
        body += bytes(message.get("body", b""))
        if len(body) > MOST_BODY:
            return None
        if not message.get("more_body"):
            return body


def _request(scope: dict[str, Any], body: bytes) -> Request:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    mount, path = scope.get("root_path", ""), scope["path"]
    return Request(
        scope["method"],
        path[len(mount) :] if mount and path.startswith(mount) else path,  # some servers leave the mount in the path
        Params(scope["query_string"].decode("latin-1")),
        headers,
        Params(body.decode("latin-1")) if scope["method"] == "POST" else Params(),
        mount,
        scope["client"][0] if scope.get("client") else None,
        _user(scope) or basic_user(headers),
        scope,
    )


def _user(scope: dict[str, Any]) -> str | None:
    """Return the name of the user that a middleware has found, such as Starlette's."""
    user = scope.get("user")
    name = getattr(user, "display_name", None) or getattr(user, "username", None)
    return str(name) if name else None

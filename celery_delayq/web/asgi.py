"""ASGI: the page for asynchronous web servers, in threads of its own."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from celery_delayq.web.access import basic_user
from celery_delayq.web.request import MOST_BODY, Params, Request, Response, form_of
from celery_delayq.web.site import Site

#: How many requests are answered at once. Others wait.
_THREADS = 4


def asgi_app(site: Site) -> Any:
    """Return an ASGI app."""
    pools: dict[int, ThreadPoolExecutor] = {}

    def threads() -> ThreadPoolExecutor:
        # Not the executor of the event loop: a server that hangs must not take its threads from other pages.
        # And each process has its own: no thread outlives a fork.
        if os.getpid() not in pools:
            pools[os.getpid()] = ThreadPoolExecutor(_THREADS, "delayq-web")
        return pools[os.getpid()]

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = await _body(receive)
            if body is not None:
                read, loop = partial(_request, scope, body), asyncio.get_running_loop()
                await _send(await loop.run_in_executor(threads(), site.answer, read), send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
            if pool := pools.pop(os.getpid(), None):
                pool.shutdown(wait=False)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
        else:
            raise ValueError(f"this app does not know ASGI's scope {scope['type']!r}")

    return application


async def _send(response: Response, send: Any) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def _live(receive: Any, send: Any) -> None:
    """Answer a server that tells when it starts and ends. An app that this one is mounted in keeps that for itself."""
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _body(receive: Any) -> bytes | None:
    """Return the body, or enough of it to see that it is too long; None if the client has gone."""
    body = bytearray()
    while len(body) <= MOST_BODY:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)


def _request(scope: dict[str, Any], body: bytes) -> Request:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        # HTTP/2 may split cookies. No other header that counts may come twice: as one text, it says nothing.
        between = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{between}{value}" if name in headers else value
    mount, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    is_within = mount and (path == mount or path.startswith(f"{mount}/"))  # some servers leave the mount in the path
    return Request(
        scope["method"],
        path[len(mount) :] if is_within else path,
        Params(scope.get("query_string", b"")),
        headers,
        form_of(body, headers.get("content-length")) if scope["method"] == "POST" else Params(),
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

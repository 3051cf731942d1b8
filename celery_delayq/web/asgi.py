"""ASGI: the page for asynchronous web servers, in threads of its own."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery_delayq.web.access import basic_user
from celery_delayq.web.request import MOST_BODY, Params, Request, Response, TooLong, form_of
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
            response = await _response(scope, receive)
            if response is not None:
                await _send(response, send)
        elif scope["type"] == "lifespan":
            await _live(receive, send)
            if pool := pools.pop(os.getpid(), None):
                pool.shutdown(wait=False)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
        else:
            raise ValueError(f"this app does not know ASGI's scope {scope['type']!r}")

    async def _response(scope: dict[str, Any], receive: Any) -> Response | None:
        try:
            body = await _body(receive)
            if body is None:
                return None
            request = _request(scope, body)
        except ValueError as exc:
            return site.refuse(exc)
        return await asyncio.get_running_loop().run_in_executor(threads(), site.handle, request)

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
    """Return the body; None if the client has gone.

    Raises:
        TooLong: it is too long.
    """
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(bytes(message.get("body", b"")))
        length += len(parts[-1])
        if length > MOST_BODY:
            raise TooLong
        if not message.get("more_body"):
            return b"".join(parts)


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
        form_of(scope["method"], body, headers.get("content-length")),
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

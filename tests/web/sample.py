"""A small site with known faults, as a WSGI app, an ASGI app and Django's URLs: it shows that the fixtures see them.

It asks `access` as the operators' page does.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server

Access = Callable[[Any], Any]

#: Status, headers and body.
Answer = tuple[int, dict[str, str], bytes]

_PAGES = {
    "": '<form method="post" action="say"><label>Your name <input name="name"></label><button>Send</button></form>'
    '<p id="access">{access}</p>',
    "clean": "<p>Nothing is wrong here.</p>",
    "contrast": '<p style="color: #bbb; background: #fff">Can you read this?</p>',
    "inline": '<p id="answer">no script ran</p><script>document.getElementById("answer").textContent = "ran"</script>',
    "script": '<p id="answer">no script ran</p><script src="script.js"></script>',
    "error": '<script src="error.js"></script>',
    "dialog": '<script src="dialog.js"></script>',
    "elsewhere": '<img src="http://127.0.0.2:1/pixel.png" alt="">',
    "wide": '<p style="width: 900px">This is wider than a phone.</p>',
}

_SCRIPTS = {
    "script.js": 'document.getElementById("answer").textContent = "ran"',
    "error.js": 'throw new Error("broken")',
    "dialog.js": 'alert("hello")',
}

_HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sample</title>'
    '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    "<style>:root {{ color-scheme: light dark }}</style></head>"
    "<body><main><h1>Sample</h1>{content}</main></body></html>"
)


def respond(method: str, path: str, body: bytes, access: Any) -> Answer:
    """Answer a request.

    Args:
        method: of HTTP.
        path: where, below the place that the site is mounted at, without a slash at the start.
        body: of a form.
        access: what the site's `access` said.
    """
    if access is None:
        return 403, {"Content-Type": "text/plain"}, b"forbidden"
    if method == "POST" and path == "say":
        (name,) = parse_qs(body.decode(), keep_blank_values=True)["name"]
        content = f'<p id="said">Hello {html.escape(name)}!</p><a href=".">Back</a>'
    elif path in _SCRIPTS:
        return 200, {"Content-Type": "text/javascript"}, _SCRIPTS[path].encode()
    elif path in _PAGES:
        content = _PAGES[path].replace("{access}", html.escape(repr(access)))
    else:
        return 404, {"Content-Type": "text/plain"}, b"not found"
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'; img-src * data:",
    }
    return 200, headers, _HEAD.format(content=content).encode()


def make_wsgi_app(app: Any, *, access: Access) -> Any:
    """Return the site as a WSGI app."""

    def site(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ.get("PATH_INFO", "").lstrip("/")
        status, headers, content = respond(environ["REQUEST_METHOD"], path, body, access(environ))
        start_response(f"{status} -", list(headers.items()))
        return [content]

    return site


def make_asgi_app(app: Any, *, access: Access) -> Any:
    """Return the site as an ASGI app."""

    async def site(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        status, headers, content = respond(scope["method"], path, body, access(scope))
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": content})

    return site


def urls(app: Any, *, access: Access) -> Any:
    """Return the site as Django's URL patterns."""
    from django.http import HttpRequest, HttpResponse
    from django.urls import re_path
    from django.views.decorators.csrf import csrf_exempt

    @csrf_exempt
    def view(request: HttpRequest, path: str) -> HttpResponse:
        status, headers, content = respond(str(request.method), path, request.body, access(request))
        return HttpResponse(content, status=status, headers=headers)

    return [re_path("^(?P<path>.*)$", view)]


if __name__ == "__main__":
    with make_server("127.0.0.1", 0, make_wsgi_app(None, access=lambda request: "all")) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()

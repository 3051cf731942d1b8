"""WSGI: the page for any web server of Python."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from celery_delayq.web.access import basic_user
from celery_delayq.web.request import MOST_BODY, Params, Request, form_of, length_of
from celery_delayq.web.site import Site


def wsgi_app(site: Site) -> Any:
    """Return a WSGI app."""

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        response = site.answer(lambda: _request(environ))
        status = f"{response.status} {HTTPStatus(response.status).phrase}"
        start_response(status, list(response.headers.items()))
        return [response.body]

    return application


def _request(environ: dict[str, Any]) -> Request:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    method = environ["REQUEST_METHOD"]
    return Request(
        method,
        _text(environ.get("PATH_INFO", "")),
        Params(environ.get("QUERY_STRING", "").encode("latin-1")),
        headers,
        form_of(_body(environ), environ.get("CONTENT_LENGTH")) if method == "POST" else Params(),
        _text(environ.get("SCRIPT_NAME", "")),
        environ.get("REMOTE_ADDR"),
        environ.get("REMOTE_USER") or basic_user(headers),
        environ,
    )


def _body(environ: dict[str, Any]) -> bytes:
    """Return the body. One in chunks has no length: some servers say that they end it, others give it none."""
    most = MOST_BODY + 1 if environ.get("wsgi.input_terminated") else 0
    if length := environ.get("CONTENT_LENGTH"):
        most = length_of(length)
    body = b""
    while len(body) < most and (part := environ["wsgi.input"].read(most - len(body))):
        body += part
    return body


def _text(path: str) -> str:
    """Return a path of a WSGI environ, which has bytes as Latin-1, as text."""
    return path.encode("latin-1").decode("utf-8", "replace")

"""WSGI: the page for any web server of Python."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from celery_delayq.web.access import basic_user
from celery_delayq.web.request import MOST_BODY, Params, Request, Response
from celery_delayq.web.site import Site


def wsgi_app(site: Site) -> Any:
    """Return a WSGI app."""

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            response = site.handle(_request(environ))
        except ValueError as exc:
            response = Response(400, str(exc).encode(), {"Content-Type": "text/plain; charset=utf-8"})
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
    form = Params()
    if environ["REQUEST_METHOD"] == "POST":
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > MOST_BODY:
            raise ValueError("the form is too long")
        form = Params(environ["wsgi.input"].read(length).decode("latin-1"))
    return Request(
        environ["REQUEST_METHOD"],
        _text(environ.get("PATH_INFO", "")),
        Params(environ.get("QUERY_STRING", "")),
        headers,
        form,
        _text(environ.get("SCRIPT_NAME", "")),
        environ.get("REMOTE_ADDR"),
        environ.get("REMOTE_USER") or basic_user(headers),
        environ,
    )


def _text(path: str) -> str:
    """Return a path of a WSGI environ, which has bytes as Latin-1, as text."""
    return path.encode("latin-1").decode("utf-8", "replace")

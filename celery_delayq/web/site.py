"""Site: answers requests. It finds the page, checks who asks and from where, and adds what every answer has."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from celery_delayq.web.access import Access, Refusal, UserOf, check_host, check_origin, granted
from celery_delayq.web.audit import OnChange, record
from celery_delayq.web.broker import Broker, Unavailable
from celery_delayq.web.language import LANGUAGES, language_of
from celery_delayq.web.live import LiveCache
from celery_delayq.web.pages import PAGES
from celery_delayq.web.pages.steps import may_have_changed
from celery_delayq.web.rendering import MOST_CHARACTERS, cut
from celery_delayq.web.request import Params, Request, Response, TooLong, accepted, encoded
from celery_delayq.web.view import Page, View

logger = logging.getLogger(__name__)

#: Nothing may run, load or be sent but what this page itself has.
_POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_FOLDER = Path(__file__).parent / "static"
_STATIC = {
    "/web.css": "text/css; charset=utf-8",
    "/web.js": "text/javascript; charset=utf-8",
    "/favicon.svg": "image/svg+xml",
}

#: Answers that are shorter are not compressed, in bytes.
_SHORT = 500

#: How long open tabs get the same answer, in seconds: a little less than each waits (`web.js`).
_FRESH_S = 2.7

_COOKIE = "delayq_language"


class Site:
    """The page for the operators of a Celery app. Threads may share it; it works after a fork.

    Args:
        app: the Celery app. Nothing connects before the first request.
        access, hosts, user_of: see `make_wsgi_app`.
        on_change: is called after each change, to record it elsewhere than in the audit log.
        home: URL of the admin that the page is a part of; None if it is not.
    """

    def __init__(
        self,
        app: Any,
        *,
        access: Access,
        hosts: Collection[str] | None = None,
        user_of: UserOf | None = None,
        on_change: OnChange | None = None,
        home: str | None = None,
    ) -> None:
        self.broker = Broker(app)
        self._access = access
        self._user_of = user_of
        self._on_change = on_change
        self._home = home
        self._hosts = None if hosts is None else frozenset(name.lower() for name in hosts)
        self._pages: dict[str, Page] = {page.path: page for page in PAGES}
        self._live: LiveCache[Response] = LiveCache(_FRESH_S)

    def handle(self, request: Request) -> Response:
        """Answer a request. Never raises."""
        language = language_of(_cookie(request), request.headers.get("accept-language", ""))
        audit = partial(record, request.user, request, None)
        view = View(request, self.broker, frozenset(), language, audit, self._home)
        try:
            response = self._answer_of_site(request)
            if response is None:
                may = granted(self._access, request)
                view = replace(view, may=may, place=tuple(filter(None, self.broker.place)))
                response = self._answer(view)
        except Unavailable as exc:
            response = _unavailable(view, exc)
        except Refusal as exc:
            title = view._("Not found") if exc.status == 404 else view._("Not done")
            response = view.error(exc.status, title, view._(cut(exc, MOST_CHARACTERS)))
            response.headers.update(exc.headers)
        except UnicodeEncodeError as exc:
            response = view.error(400, view._("Not done"), f"Nothing has this name, which is not UTF-8: {exc.object!r}")
        except Exception:
            logger.exception("Cannot answer %s %s", request.method, request.path)
            text = view._("This is a bug in the page, or an error in its configuration. See the log of the server.")
            response = view.error(500, view._("Something went wrong"), text)
        return _finished(response, request)

    def answer(self, read: Callable[[], Request]) -> Response:
        """Answer the request that an adapter reads. If that raises a ValueError, the answer says so."""
        try:
            request = read()
        except ValueError as exc:
            text = f"This request cannot be read: {cut(exc, MOST_CHARACTERS)}.".encode()
            status = 413 if isinstance(exc, TooLong) else 400
            response = Response(status, text, {"Content-Type": "text/plain; charset=utf-8"})
            return _finished(response, Request("POST", "/", Params(), {}))
        return self.handle(request)

    def _answer_of_site(self, request: Request) -> Response | None:
        """Return what is not the answer of a page; None if a page is asked for."""
        check_host(request, self._hosts)
        methods = ("GET", "HEAD") if request.path in ("", *_STATIC) else ("GET", "HEAD", "POST")
        if request.method not in methods:
            raise Refusal(405, "Only GET, HEAD and POST are answered.", {"Allow": ", ".join(methods)})
        if not request.path:
            return Response.redirect(f"{quote(request.mount.rpartition('/')[2], safe='')}/")
        if request.path in _STATIC:
            return _static(request.path)
        return None

    def _answer(self, view: View) -> Response:
        request = view.request
        page = self._pages.get(request.path)
        if page is None:
            raise Refusal(404, "There is no such page.")
        user = self._user_of(request) if self._user_of and request.method == "POST" else request.user
        view = replace(view, audit=partial(record, user, request, self._on_change))
        if request.method == "POST":
            check_origin(request)
            try:
                return page.act(view)
            finally:
                self._live.clear()
        if request.query.get("lang") in LANGUAGES:
            return _chosen(request)
        if request.is_live:
            key = (request.path, tuple(request.query), view.may, view.language.code)
            return self._live.get(key, lambda: page.show(view))
        return page.show(view)


def _unavailable(view: View, error: Unavailable) -> Response:
    """Return a page that tries again by itself, but no change is ever tried again."""
    if not may_have_changed(view.request.form):
        return view.error(503, view._("Redis cannot be read"), f"{str(error).rstrip('.')}.", is_live=True)
    text = view._("%(error)s. Look at the list before you try again: a part of it may be done.", error=str(error))
    return view.error(503, view._("The change was broken off"), text)


def _cookie(request: Request) -> str:
    """Return the language of the cookie. Cookies of other pages, which may be invalid, do not matter."""
    pairs = (part.strip().partition("=") for part in request.headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == _COOKIE), "")


def _chosen(request: Request) -> Response:
    """Remember a language, and show the same page. Without a path, a cookie is for all pages beside this one."""
    rest = encoded({name: value for name, value in request.query if name != "lang"})
    response = Response.redirect(f"{request.path.lstrip('/') or './'}{'?' if rest else ''}{rest}")
    code = request.query.get("lang")
    response.headers["Set-Cookie"] = f"{_COOKIE}={code}; Max-Age=31536000; SameSite=Lax; HttpOnly"
    return response


def _static(path: str) -> Response:
    body = (_FOLDER / path.lstrip("/")).read_bytes()
    return Response(200, body, {"Content-Type": _STATIC[path], "Cache-Control": "max-age=3600"})


def _finished(response: Response, request: Request) -> Response:
    """Return a copy with the headers that every answer has; compressed; and without a body where none is wanted."""
    headers = {"Cache-Control": "private, no-cache", **_HEADERS, **response.headers}
    headers["Vary"] = "Accept-Encoding, Accept-Language, Cookie"
    body = response.body
    if response.status == 200 and request.method != "POST":
        headers["ETag"] = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if headers["ETag"] in map(str.strip, request.headers.get("if-none-match", "").split(",")):
            return Response(304, b"", headers)
    encodings = accepted(request.headers.get("accept-encoding", ""))
    if len(body) >= _SHORT and any(name == "gzip" and quality > 0 for quality, name in encodings):
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, 5, mtime=0)
    headers["Content-Length"] = str(len(body))
    return Response(response.status, b"" if request.method == "HEAD" else body, headers)

"""The operators' page without a browser: requests straight to the app, and answers taken apart."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import BytesIO
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import pytest
import redis
from celery import Celery
from kombu import pools

from celery_delayq.web import make_wsgi_app
from celery_delayq.web.access import Access
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.web.shop import make_app

#: What the browser of a user sends with a form of the page itself.
OWN = {"Sec-Fetch-Site": "same-origin"}

_HOST = "127.0.0.1:5556"

#: Elements without an end tag.
_VOID = frozenset({"meta", "link", "input", "br", "wbr"})


@contextmanager
def shop(server: PrivateRedis, **conf: Any) -> Iterator[Celery]:
    """The shop's app for this process, on an empty broker."""
    with server.client() as client:
        client.flushall()
    app = make_app(brokers.url_of(server), f"redis://127.0.0.1:{server.port}/1", **conf)
    try:
        yield app
    finally:
        app.close()
        pools.reset()  # pooled connections know of queues that are deleted


@pytest.fixture
def app(redis_server: PrivateRedis) -> Iterator[Celery]:
    """The shop, on an empty broker."""
    with shop(redis_server) as app:
        yield app


@pytest.fixture
def client(redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    """A client of the shop's broker."""
    with redis_server.client() as client:
        yield client


@pytest.fixture
def user(app: Celery) -> User:
    """A user who may do everything."""
    return user_of(app)


def user_of(app: Celery, access: Access | str | Iterable[str] | None = "all", **kwargs: Any) -> User:
    """Return a user of a page of its own.

    Args:
        app: the app.
        access: what the user may do, or the page's `access`.
        kwargs: further arguments of `make_wsgi_app`.
    """
    given = access if callable(access) else lambda request: access
    return User(make_wsgi_app(app, access=given, **kwargs))


@dataclass(frozen=True)
class Form:
    """A form of a page.

    Attributes:
        action: where it goes; empty for the page itself.
        method: "get" or "post".
        fields: names and values of what is sent without anybody's doing: of hidden fields, texts and what is chosen.
        boxes: names and values of the boxes that can be checked.
        buttons: names and values of the buttons that send it.
    """

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str]] = field(default_factory=list)


class Document(HTMLParser):
    """A page, taken apart.

    Attributes:
        elements: tags and attributes, in order.
        forms: the forms.
        text: all text between tags.
        texts: pieces of text, each with its tag.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.forms: list[Form] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._form: Form | None = None
        self._writing: tuple[str, str] | None = None
        self._choosing: tuple[str, str | None] | None = None
        self.feed(html)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join("".join(text for _, text in self.texts).split())

    def texts_of(self, tag: str) -> list[str]:
        """Return the text of each element of this kind that has nothing but text."""
        return [" ".join(text.split()) for of, text in self.texts if of == tag and text.strip()]

    def values(self, *names: str) -> Iterator[str]:
        """Yield the values of these attributes."""
        for _, attributes in self.elements:
            for name in names:
                if attributes.get(name) is not None:
                    yield str(attributes[name])

    def form(self, action: str) -> Form:
        """Return the form that asks for an action, by a button or a hidden field."""
        (found,) = (form for form in self.forms if ("action", action) in (*form.fields, *form.buttons))
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        given = dict(attrs)
        assert len(given) == len(attrs), f"an attribute of {tag} twice: {attrs}"
        self.elements.append((tag, given))
        if tag not in _VOID:
            self._open.append(tag)
        name, value = given.get("name"), given.get("value") or ""
        if tag == "form":
            self._form = Form(given.get("action") or "", given.get("method") or "get")
            self.forms.append(self._form)
        elif self._form is not None and name and tag in ("input", "button"):
            kind = given.get("type", "submit" if tag == "button" else "text")
            if kind in ("checkbox", "radio") and "checked" not in given:
                self._form.boxes.append((name, value))
            elif tag == "button":
                self._form.buttons.append((name, value))
            else:
                self._form.fields.append((name, value))
        elif self._form is not None and name and tag == "textarea":
            self._writing = name, ""
        elif self._form is not None and name and tag == "select":
            self._choosing = name, None
        elif self._choosing is not None and tag == "option" and (self._choosing[1] is None or "selected" in given):
            self._choosing = self._choosing[0], value

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element of SVG."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close an element, which must be the last one."""
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()
        if self._form is not None and tag == "textarea" and self._writing is not None:
            self._form.fields.append((self._writing[0], self._writing[1].removeprefix("\n")))
            self._writing = None
        if self._form is not None and tag == "select" and self._choosing is not None:
            self._form.fields.append((self._choosing[0], self._choosing[1] or ""))
            self._choosing = None
        if tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        """Note text."""
        if self._writing is not None:
            self._writing = self._writing[0], self._writing[1] + data
        self.texts.append((self._open[-1] if self._open else "", data))


@dataclass(frozen=True)
class Answer:
    """An answer of the page.

    Attributes:
        status: HTTP status.
        headers: names in lower case.
        body: as it was sent.
        url: path and query that were asked for.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = "/"

    @property
    def text(self) -> str:
        """The body as text."""
        is_short = self.headers.get("content-encoding") == "gzip" and self.body
        return (gzip.decompress(self.body) if is_short else self.body).decode()

    @property
    def page(self) -> Document:
        """The body as a page."""
        assert self.headers["content-type"] == "text/html; charset=utf-8", self.headers
        return Document(self.text)

    @property
    def title(self) -> str:
        """The heading."""
        (title,) = self.page.texts_of("h1")
        return title


class User:
    """Asks a WSGI app.

    Args:
        application: the app.
        mount: where it is mounted.
        headers: what goes with each request.
    """

    def __init__(self, application: Any, mount: str = "", **headers: str) -> None:
        self.application = application
        self.mount = mount
        self.headers = {"Host": _HOST, **headers}

    def get(self, path: str = "/", query: Mapping[str, object] | str = "", **headers: str) -> Answer:
        """GET a page."""
        return self.ask("GET", path, query, b"", headers)

    def post(
        self,
        path: str,
        form: Mapping[str, object] | Iterable[tuple[str, object]] | bytes = b"",
        query: Mapping[str, object] | str = "",
        **headers: str,
    ) -> Answer:
        """POST a form, as the page itself does."""
        body = form if isinstance(form, bytes) else urlencode(_pairs(form)).encode()
        return self.ask("POST", path, query, body, {**OWN, **headers})

    def act(self, path: str, action: str, query: Mapping[str, object] | str = "", **fields: object) -> Answer:
        """Ask for an action that was confirmed."""
        return self.post(path, {"action": action, "confirmed": "yes", **fields}, query)

    def submit(
        self,
        answer: Answer,
        action: str,
        boxes: Iterable[tuple[str, str]] | Callable[[Form], Iterable[tuple[str, str]]] = (),
        **fields: str,
    ) -> Answer:
        """Send a form of a page that asks for an action, with its own fields.

        Args:
            answer: the page.
            action: the action.
            boxes: which boxes are checked, or says which.
            fields: what the user types, by the names of fields.
        """
        form = answer.page.form(action)
        assert form.method == "post"
        wanted = list(boxes(form) if callable(boxes) else boxes)
        assert set(wanted) <= set(form.boxes), (wanted, form.boxes)
        assert set(fields) <= {name for name, _ in form.fields}, (fields, form.fields)
        of_boxes = {name for name, _ in wanted}
        sent = [(name, fields.get(name, value)) for name, value in form.fields if name not in of_boxes]
        if ("action", action) in form.buttons:
            sent.append(("action", action))
        return self.post_to(answer, form.action, [*sent, *wanted])

    def post_to(self, answer: Answer, action: str, fields: Iterable[tuple[str, object]]) -> Answer:
        """POST to a URL that stands on a page."""
        to = urlsplit(urljoin(answer.url, action) if action else answer.url)
        return self.post(to.path, fields, to.query)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        **environ: Any,
    ) -> Answer:
        """Ask for whatever.

        Args:
            method: of HTTP.
            path: below the place where the app is mounted; already quoted paths are not.
            query: fields, or a query string.
            body: the body.
            headers: further headers; underscores stand for hyphens.
            environ: overrides what the server says.
        """
        text = query if isinstance(query, str) else urlencode(_pairs(query))
        found: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": self.mount,
            "PATH_INFO": path.encode("utf-8", "surrogateescape").decode("latin-1"),
            "QUERY_STRING": text,
            "REMOTE_ADDR": "192.0.2.1",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "5556",
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(body),
        }
        if method == "POST":
            found["CONTENT_LENGTH"] = str(len(body))
            found["CONTENT_TYPE"] = "application/x-www-form-urlencoded"
        for name, value in {**self.headers, **(headers or {})}.items():
            found["HTTP_" + name.upper().replace("-", "_")] = value
        found.update(environ)
        started: list[Any] = []
        parts = self.application(found, lambda status, pairs: started.append((status, pairs)))
        answered = b"".join(parts)
        ((status, pairs),) = started
        url = f"{quote(path)}?{text}" if text else quote(path)
        return Answer(int(status.split()[0]), {name.lower(): value for name, value in pairs}, answered, url)


def _pairs(form: Mapping[str, object] | Iterable[tuple[str, object]]) -> list[tuple[str, str | bytes]]:
    items = form.items() if isinstance(form, Mapping) else form
    return [(name, value if isinstance(value, bytes) else str(value)) for name, value in items]


def dump(client: redis.Redis) -> dict[bytes, bytes | None]:
    """Return all that is in the database of the broker."""
    return {key: client.dump(key) for key in client.scan_iter()}

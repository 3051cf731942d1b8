"""Request and Response: what an adapter hands over, and what it gets back. They know no framework."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

#: The longest body of a request, in bytes, and the most fields of a form or a query.
MOST_BODY, MOST_FIELDS = 1_000_000, 3000


#: Error handlers for UTF-8, to carry any text: names in Redis may be no UTF-8, and JSON may have half a surrogate pair.
TO_BYTES, FROM_BYTES = "surrogatepass", "celery_delayq.any"


def _decode_any(error: UnicodeError) -> tuple[str | bytes, int]:
    """Decode what `TO_BYTES` encodes; keep any other byte as a surrogate."""
    try:
        return codecs.lookup_error("surrogatepass")(error)
    except UnicodeDecodeError:
        return codecs.lookup_error("surrogateescape")(error)


codecs.register_error(FROM_BYTES, _decode_any)


class TooLong(ValueError):
    """The body of a request is longer than `MOST_BODY`."""

    def __init__(self) -> None:
        super().__init__(f"a form may have {MOST_BODY:,} bytes at most")


class Params:
    """Fields of a query string or of a form, in order. A name may occur several times.

    Args:
        encoded: as `application/x-www-form-urlencoded`.

    Raises:
        ValueError: there are too many fields.
    """

    def __init__(self, encoded: bytes | str = b"") -> None:
        text = encoded if isinstance(encoded, str) else encoded.decode("utf-8", FROM_BYTES)
        self._pairs = parse_qsl(text, keep_blank_values=True, errors=FROM_BYTES, max_num_fields=MOST_FIELDS)

    def get(self, name: str, default: str = "") -> str:
        """Return the last value of a name."""
        return next((value for key, value in reversed(self._pairs) if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a name, as they were sent."""
        return [value for key, value in self._pairs if key == name]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)


def form_of(body: bytes, length: str | None) -> Params:
    """Return the fields of a form.

    Args:
        body: what came, or enough of it to see that it is too long.
        length: header `Content-Length`; None or empty if nobody said how long the body is.

    Raises:
        TooLong: the body is too long.
        ValueError: it is shorter than it should be, because the client has gone, or has too many fields.
    """
    if len(body) > MOST_BODY:
        raise TooLong
    if length and len(body) != length_of(length):
        raise ValueError("the form did not arrive as a whole, so nothing was done")
    return Params(body)


def length_of(text: str) -> int:
    """Return the number of a header `Content-Length`.

    Raises:
        TooLong: it is more than a form may have.
        ValueError: it is not a number.
    """
    if not (text.isascii() and text.isdigit()):
        raise ValueError("Content-Length is not a number")
    digits = text.lstrip("0")
    if len(digits) > len(str(MOST_BODY)) or int(digits or "0") > MOST_BODY:
        raise TooLong
    return int(digits or "0")


def encoded(params: Mapping[str, object]) -> str:
    """Return fields as a query string that `Params` reads as the same text. None and empty texts are left out."""
    pairs = [(name, str(value)) for name, value in params.items() if value not in (None, "")]
    return urlencode(pairs, errors=TO_BYTES, encoding="utf-8") if pairs else ""


def accepted(header: str) -> list[tuple[float, str]]:
    """Return what a header such as `Accept-Language` accepts: qualities, and names in lower case; the best first."""
    found = []
    for part in header.split(",")[:20]:
        name, _, quality = "".join(part.lower().split()).partition(";q=")
        with suppress(ValueError):
            found.append((float(quality or 1), name))
    return sorted(found, key=lambda one: -one[0])


@dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
        method: in capitals.
        path: below the place where the page is mounted: "/waiting". Empty if not even the slash follows that place.
        query: fields of the query string.
        headers: names in lower case.
        form: fields of the body, if it is a form.
        mount: the place, "/ops/delayq"; empty if it is the root, or a proxy strips it.
        remote: address of the client, if known.
        user: name of the user, if the web server or the framework knows it.
        native: the framework's own request: the WSGI environ, the ASGI scope, or Django's HttpRequest.
    """

    method: str
    path: str
    query: Params
    headers: Mapping[str, str]
    form: Params = field(default_factory=Params)
    mount: str = ""
    remote: str | None = None
    user: str | None = None
    native: Any = None

    @property
    def is_live(self) -> bool:
        """Whether a page that is open asks for its newer state."""
        return self.method == "GET" and "x-delayq-live" in self.headers


@dataclass
class Response:
    """A response. Adapters add nothing but what their framework needs.

    Attributes:
        status: HTTP status.
        body: bytes of the body.
        headers: names and values.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def html(cls, text: str, status: int = 200) -> Response:
        """Return a page. What is not valid Unicode is replaced."""
        return cls(status, text.encode("utf-8", "replace"), {"Content-Type": "text/html; charset=utf-8"})

    @classmethod
    def redirect(cls, to: str) -> Response:
        """Return a redirection to a relative URL, to be fetched by GET."""
        return cls(303, b"", {"Location": to})

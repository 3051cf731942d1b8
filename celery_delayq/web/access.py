"""Access: who may see the page, and do what. Where a change may come from."""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping
from urllib.parse import urlsplit

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.web.request import Request
from celery_delayq.web.words import marked

#: What can be done. `access` may allow all of it, none, or some by these names.
ACTIONS = (
    *("cancel", "reschedule", "run_now"),
    *("dead.requeue", "dead.purge"),
    *("queue.pause", "queue.resume"),
    *("schedule.add", "schedule.update", "schedule.remove"),
    *("schedule.pause", "schedule.resume", "schedule.run_now"),
)

#: Decides for each request: None (nothing at all), "read", "all", or names of `ACTIONS`, which include reading.
Access = Callable[[Request], "str | Iterable[str] | None"]

#: Returns the name of a request's user for the audit log; None if nobody knows.
UserOf = Callable[[Request], "str | None"]


class Refusal(Exception):
    """A request is not answered as it wants. The message is for the user.

    Args:
        status: HTTP status.
        message: a sentence.
        headers: headers that the answer must have.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class Unauthorized(Refusal):
    """The user must say who they are. `access` may raise it: the browser asks for a name and a password."""

    def __init__(self) -> None:
        message = marked("A user name and the password are needed.")
        super().__init__(401, message, {"WWW-Authenticate": 'Basic realm="celery_delayq", charset="UTF-8"'})


def granted(access: Access, request: Request) -> frozenset[str]:
    """Return what a request may do.

    Raises:
        ConfigurationError: `access` returned something else than it may.
        Refusal: it may do nothing.
    """
    answer = access(request)
    if answer is None:
        raise Refusal(403, "You may not see this page.")
    if answer == "read":
        return frozenset()
    if answer == "all":
        return frozenset(ACTIONS)
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise ConfigurationError(f"access() must return None, 'read', 'all' or names of actions, not {answer!r}")
    names = frozenset(answer)
    if unknown := sorted(map(str, names - set(ACTIONS))):
        raise ConfigurationError(f"access() returned unknown actions {unknown}; known are {', '.join(ACTIONS)}")
    return names


def password_access(password: str, grant: str = "all") -> Access:
    """Return an `access` that wants this password, with any user name, by HTTP's basic authentication.

    Raises:
        ConfigurationError: the password is empty.
    """
    wanted = password.encode("utf-8", "surrogateescape")
    if not wanted:
        raise ConfigurationError("the password is empty, so everybody would know it")

    def access(request: Request) -> str:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            found = b64decode(given).partition(b":")[2] if kind.lower() == "basic" else b""
        except ValueError:
            found = b""
        if not hmac.compare_digest(found, wanted):
            raise Unauthorized
        return grant

    return access


def basic_user(headers: dict[str, str]) -> str | None:
    """Return the user name of HTTP's basic authentication; None if there is none."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    try:
        return b64decode(given).partition(b":")[0].decode() or None if kind.lower() == "basic" else None
    except ValueError:
        return None


def check_host(request: Request, hosts: Collection[str] | None) -> None:
    """Check that the browser asked for one of these hosts: another site's name may point to this address.

    Args:
        request: the request.
        hosts: names without ports; None for any.

    Raises:
        Refusal: it did not.
    """
    if hosts is not None and _host_of(f"//{request.headers.get('host', '')}") not in hosts:
        raise Refusal(421, "This page does not answer for that host name. Allow it with --allow-host, or hosts=.")


def check_origin(request: Request) -> None:
    """Check that a change comes from this page itself.

    Browsers say so by `Sec-Fetch-Site`, except over plain HTTP; there, by `Origin`, which must name the host that was
    asked. So a proxy must pass the `Host` header on.

    Raises:
        Refusal: it does not, or nobody knows.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
        is_own = bool(host) and origin.partition("://")[2].lower() == host.lower()
    if not is_own:
        raise Refusal(403, "This change does not come from this page, so it was not made. Open the page itself.")


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""

"""A page for operators: what waits, when it is due, and what to do about it.

    make_wsgi_app, make_asgi_app    apps to mount anywhere
    django.urls                     URL patterns for Django

From an adapter down to Redis:

    wsgi, asgi, django   turn a framework's request into ours, and our response into theirs
    server               an HTTP server for the command `celery delayq web`
    site                 finds the page, checks who asks and from where
    access, audit        who may do what; a line in the log for each change
    pages                a module each: what is shown and done, by calls of the inspector and the schedule
    view, rendering      what pages have at hand; Jinja2, where every value is made safe to show
    charts, language     geometry of charts; translations
    words                words that no template has
    live                 one answer for all open tabs
    broker               connections to the broker
    request              Request and Response

It needs Jinja2, see the extra `web`.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.text import how_to_install

if TYPE_CHECKING:
    from celery_delayq.web.access import Access, UserOf

__all__ = ["make_asgi_app", "make_wsgi_app"]


def make_wsgi_app(
    app: Any, *, access: Access | None = None, hosts: Collection[str] | None = None, user_of: UserOf | None = None
) -> Any:
    """Return a WSGI app with the page, to be mounted under any path.

        application = DispatcherMiddleware(flask_app, {"/ops/delayq": make_wsgi_app(celery_app, access=...)})

    It neither connects nor reads the configuration before the first request.

    Args:
        app: the Celery app.
        access: is called with each request (`web.request.Request`; its `native` is the WSGI environ), and says what it
            may do: None for nothing, "read", "all", or names of `web.access.ACTIONS`. There is no default: the page
            shows the arguments of tasks, and can cancel all of them.
        hosts: host names that the page answers for, without ports; by default any.
        user_of: returns the name of a request's user for the audit log; by default, what the server or framework says.

    Raises:
        ConfigurationError: Jinja2 is not installed.
        TypeError: `access` is missing, or not a function.
    """
    check_access(access)
    return web_module("wsgi").wsgi_app(web_module("site").Site(app, access=access, hosts=hosts, user_of=user_of))


def make_asgi_app(
    app: Any, *, access: Access | None = None, hosts: Collection[str] | None = None, user_of: UserOf | None = None
) -> Any:
    """Return an ASGI app with the page. It works in threads of its own, so it does not hold up the event loop.

    Arguments and errors are those of `make_wsgi_app`; the `native` request is the ASGI scope.
    """
    check_access(access)
    return web_module("asgi").asgi_app(web_module("site").Site(app, access=access, hosts=hosts, user_of=user_of))


def check_access(access: object) -> None:
    """Check that somebody has decided who may see the page.

    Raises:
        TypeError: `access` is missing, or not a function.
    """
    if not callable(access):
        raise TypeError(
            "access must be a function that takes a request, and returns what it may do: None for nothing, 'read' or "
            f"'all', not {access!r}. To let everybody read: access=lambda request: 'read'"
        )


def web_module(name: str) -> Any:
    """Return a module of this package, which needs Jinja2 and, for `server`, waitress.

    Raises:
        ConfigurationError: they are not installed.
    """
    try:
        return import_module(f"{__name__}.{name}")
    except ImportError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in ("jinja2", "markupsafe", "waitress"):
            raise
        raise ConfigurationError(
            "the web page needs Jinja2, and `celery delayq web` also waitress: "
            + how_to_install("web", "Jinja2 waitress")
        ) from exc

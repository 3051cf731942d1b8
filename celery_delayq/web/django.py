"""Django: the page as URL patterns.

path("ops/delayq/", include(celery_delayq.web.django.urls(celery_app, access=lambda request: ...)))
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt

from celery_delayq.web.access import Access, UserOf
from celery_delayq.web.request import Params, Request, form_of, length_of
from celery_delayq.web.site import Site


def urls(app: Any, *, access: Access, hosts: Collection[str] | None = None, user_of: UserOf | None = None) -> list[Any]:
    """Return URL patterns for `include`. It needs Django, and works under WSGI and ASGI.

    The page checks by itself that a change comes from it, so Django's CSRF check, which wants a token in each form,
    does not apply. Arguments are those of `make_wsgi_app`; the `native` request is Django's, so that `access` can look
    at `request.native.user`.
    """
    return [re_path(r"^(?P<path>.*)$", page_view(Site(app, access=access, hosts=hosts, user_of=user_of)))]


def page_view(site: Site) -> Callable[[HttpRequest, str], HttpResponse]:
    """Return a view. Its argument `path` is what follows the slash of the place where the page is mounted."""

    @csrf_exempt
    def view(request: HttpRequest, path: str) -> HttpResponse:
        response = site.answer(lambda: _request(request, path))
        return HttpResponse(response.body, status=response.status, headers=response.headers)

    return view  # type: ignore[no-any-return]


def _request(request: HttpRequest, path: str) -> Request:
    user = getattr(request, "user", None)
    method = request.method or "GET"
    length = request.META.get("CONTENT_LENGTH")
    if method == "POST" and length:
        length_of(length)  # before Django reads it
    return Request(
        method,
        f"/{path}",
        Params(request.META.get("QUERY_STRING", "").encode("latin-1", "surrogateescape")),
        {name.lower(): value for name, value in request.headers.items()},
        form_of(request.body, length) if method == "POST" else Params(),
        request.path[: -len(path) - 1] if path else request.path[:-1],
        request.META.get("REMOTE_ADDR"),
        user.get_username() if user is not None and user.is_authenticated else None,
        request,
    )

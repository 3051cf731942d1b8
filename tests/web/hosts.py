"""The web applications that a page is mounted in, each as a server: `python -m tests.web.hosts HOST PAGE`.

It listens on a free port of 127.0.0.1, prints the URL of the page, and serves until it is ended. The environment says
what the broker is, as for `tests.web.shop`, and in `ACCESS` where the access file is.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.web.access import AccessFile

#: Where the page is mounted.
PREFIX = "/ops/delayq"

#: Page -> modules of `make_wsgi_app` and `make_asgi_app`, and of Django's `urls`.
PAGES = {
    "delayq": ("celery_delayq.web", "celery_delayq.web.django"),
    "sample": ("tests.web.sample", "tests.web.sample"),
}


def _made(page: str, factory: str) -> Any:
    from tests.web import shop

    own, django = PAGES[page]
    make = getattr(import_module(django if factory == "urls" else own), factory)
    return make(shop.app, access=AccessFile(Path(os.environ["ACCESS"])))


def _announce(port: int) -> None:
    print(f"http://127.0.0.1:{port}{PREFIX}/", flush=True)


def _serve_wsgi(app: Any) -> None:
    from waitress import create_server

    server = create_server(app, host="127.0.0.1", port=0, threads=4)
    _announce(server.effective_port)
    server.run()


def _serve_asgi(app: Any) -> None:
    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        _announce(listener.getsockname()[1])
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=True)).run(sockets=[listener])


def _flask(page: str) -> None:
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    host = Flask("host")
    host.add_url_rule("/", view_func=lambda: "the host's own page", endpoint="home")
    # What Flask's documentation calls application dispatching.
    host.wsgi_app = DispatcherMiddleware(host.wsgi_app, {PREFIX: _made(page, "make_wsgi_app")})  # type: ignore[method-assign]
    _serve_wsgi(host)


def _fastapi(page: str) -> None:
    from fastapi import FastAPI

    host = FastAPI()
    host.add_api_route("/", lambda: "the host's own page")
    host.mount(PREFIX, _made(page, "make_asgi_app"))
    _serve_asgi(host)


def _django(page: str) -> None:
    import django
    from django.conf import settings
    from django.http import HttpRequest, HttpResponse
    from django.urls import include, path

    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("the host's own page")

    class Urls:
        """Stands for the module of `ROOT_URLCONF`."""

        urlpatterns = (path("", home),)

    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        DEBUG=False,
        # What `startproject` writes, without sessions and users.
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.middleware.clickjacking.XFrameOptionsMiddleware",
        ],
        ROOT_URLCONF=Urls,
        SECRET_KEY="only for tests",
        USE_TZ=True,
    )
    django.setup()
    Urls.urlpatterns += (path(f"{PREFIX.strip('/')}/", include(_made(page, "urls"))),)


def _django_wsgi(page: str) -> None:
    _django(page)
    from django.core.wsgi import get_wsgi_application

    _serve_wsgi(get_wsgi_application())


def _django_asgi(page: str) -> None:
    _django(page)
    from django.core.asgi import get_asgi_application

    _serve_asgi(get_asgi_application())


HOSTS: dict[str, Callable[[str], None]] = {
    "flask": _flask,
    "fastapi": _fastapi,
    "django-wsgi": _django_wsgi,
    "django-asgi": _django_asgi,
}


if __name__ == "__main__":
    HOSTS[sys.argv[1]](sys.argv[2])

"""Sites: servers of the page under test, each a process of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import wait_until
from tests.web.access import AccessFile
from tests.web.hosts import HOSTS, PREFIX
from tests.web.proxy import stripping_proxy
from tests.workers import CeleryCommand

#: A URL at the start of a line or after a space, as servers print where they listen.
_URL = re.compile(r"(?:^|\s)(https?://[^\s/]+:\d+(?:/\S*)?)", re.MULTILINE)


class Site(CeleryCommand):
    """A server that prints its URL; see `CeleryCommand` for the keyword arguments.

    Args:
        command: what to run instead of `celery -A tests.web.shop ...`.
        arguments: what comes after the app.

    Attributes:
        access: what the `access` of a mounted page says; everything is allowed at first.
    """

    def __init__(self, *arguments: str, command: list[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*arguments, app="tests.web.shop", **kwargs)
        self.access = AccessFile(self.log_path.with_name("access.json"))
        self.access.set("all")
        self._env["ACCESS"] = str(self.access.path)
        if command is not None:
            self._command = [sys.executable, "-W", "ignore", *command]

    def __enter__(self) -> Site:
        super().__enter__()
        return self

    def wait_until_ready(self) -> None:
        """Wait until it says where it is."""
        wait_until(lambda: self.has_ended or _URL.search(self.log), "a URL in the output of the site")
        if not _URL.search(self.log):
            raise AssertionError(f"the site ended without a URL in its output:\n{self.log}")

    @property
    def url(self) -> str:
        """The URL of the page, with a slash at the end."""
        found = _URL.search(self.log)
        assert found is not None, self.log
        return found[1].rstrip("/.") + "/"


def standalone(*options: str, **kwargs: Any) -> Site:
    """`celery -A tests.web.shop delayq web` on a free port."""
    return Site("delayq", "web", "--port", "0", *options, **kwargs)


def mounted(host: str, page: str = "delayq", **kwargs: Any) -> Site:
    """A page below `PREFIX` in a web application: one of `HOSTS`."""
    return Site(command=["-m", "tests.web.hosts", host, page], **kwargs)


#: Ways to serve a page: standalone, behind a proxy that strips the prefix, and in each host.
KINDS = ("standalone", "proxied", *HOSTS)


def kinds(names: str) -> list[str]:
    """Read the option `--web-in`: some of the `KINDS`, with commas between, or `all`."""
    found = [*KINDS] if names == "all" else names.split(",")
    if unknown := {*found} - {*KINDS}:
        raise pytest.UsageError(f"--web-in={','.join(sorted(unknown))}: the page can be {', '.join(KINDS)}, or all")
    return found


@contextmanager
def served(kind: str, alone: Callable[..., Site] = standalone, page: str = "delayq", **kwargs: Any) -> Iterator[str]:
    """Serve a page in one of the `KINDS`; yield its URL.

    Args:
        kind: how.
        alone: makes the site that stands alone.
        page: what to mount in hosts: `delayq`, or `sample`.
        kwargs: `broker`, `ledger` and more, see `CeleryCommand`.
    """
    if kind in HOSTS:
        with mounted(kind, page, **kwargs) as site:
            yield site.url
        return
    with alone(**kwargs) as site:
        if kind == "standalone":
            yield site.url
        else:
            with stripping_proxy(site.url, PREFIX) as url:
                yield url

"""`celery -A app delayq web`: the page for operators."""

from __future__ import annotations

import logging
import signal
import socket
from typing import Any

import click

from celery_delayq.cli.command import command, import_tasks
from celery_delayq.cli.plain import say
from celery_delayq.web import web_module

#: Addresses and names of this machine alone.
_LOCAL = ("127.0.0.1", "localhost", "::1")


@command("web")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True, help="0: any free port.")
@click.option(
    "--password",
    envvar="DELAYQ_WEB_PASSWORD",
    help="Ask for this password, with any user name. The environment is safer: other users can see arguments.",
)
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option("--insecure", is_flag=True, help="Ask for no password: anyone who can reach the port may change tasks.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    help="Another host name or address that the page answers for. May be repeated.",
)
def web(
    ctx: click.Context,
    host: str,
    port: int,
    password: str | None,
    read_only: bool,
    insecure: bool,
    hosts: tuple[str, ...],
) -> None:
    """Serve a web page that shows waiting tasks, and lets you change them.

    It listens on this machine only. For another --host, give a password or pass --insecure, and put a proxy with TLS in
    front. No worker needs to run. SIGINT or SIGTERM stops it.
    """
    if password == "":
        raise click.UsageError("the password is empty: set one, or leave the option out")
    if host not in _LOCAL and not password and not insecure:
        raise click.UsageError(
            f"anyone who can reach {host} could change tasks: set DELAYQ_WEB_PASSWORD, or pass --insecure"
        )
    access, site_module, server = web_module("access"), web_module("site"), web_module("server")
    grant = "read" if read_only else "all"
    allowed = access.password_access(password, grant) if password else lambda request: grant
    site = site_module.Site(ctx.obj.app, access=allowed, hosts={*_LOCAL, socket.gethostname(), host, *hosts})
    uri = site.broker.check()
    import_tasks(ctx.obj.app)
    _log_changes()
    try:
        serving = server.server_at(host, port, site)
    except OSError as exc:
        reason = exc.strerror or exc
        raise click.ClickException(f"cannot listen on {host}:{port}: {reason}; choose another --port") from exc

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    shown = f"[{host}]" if ":" in host else host
    say(f"Showing {uri} at http://{shown}:{_port_of(serving)}/ (Press Ctrl-C to stop)", err=True)
    serving.run()


def _port_of(serving: Any) -> Any:
    """Return the port that a server of waitress has bound; for a name with several addresses, that of the first."""
    found = getattr(serving, "effective_listen", None)
    return found[0][1] if found else serving.effective_port


def _log_changes() -> None:
    """Write the audit log to standard error, unless the app has configured logging."""
    audit = logging.getLogger("celery_delayq.web.audit")
    if not audit.hasHandlers():
        handler = logging.StreamHandler()  # standard error
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        audit.addHandler(handler)
    audit.setLevel(logging.INFO)

"""`celery -A app delayq metrics`: an endpoint for Prometheus."""

from __future__ import annotations

import signal
import threading

import click

from celery_delayq.cli.command import command
from celery_delayq.cli.plain import say, write
from celery_delayq.metrics import endpoint_module
from celery_delayq.metrics.source import Source, Unavailable


@command("metrics")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on; 127.0.0.1 for this machine.")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True, help="0: any free port.")
@click.option("--once", is_flag=True, help="Print the metrics once, and exit.")
def metrics(ctx: click.Context, host: str, port: int, once: bool) -> None:
    """Serve metrics for Prometheus over HTTP.

    Each request reads Redis, so one such process is enough for all workers, and no worker needs to run. Anyone who can
    reach the port can read the metrics. While Redis is down, requests get the answer 503. SIGINT or SIGTERM stops it.
    """
    endpoint = endpoint_module()
    source = Source(ctx.obj.app)
    uri = source.check()
    if once:
        try:
            write(endpoint.text_of(source.read()))
        except Unavailable as exc:
            raise click.ClickException(str(exc)) from exc
        finally:
            source.close()
        return
    try:
        server = endpoint.server_at(host, port, source)
    except OSError as exc:
        raise click.ClickException(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    for number in (signal.SIGINT, signal.SIGTERM):
        # In a thread: `shutdown` waits for the loop that this handler interrupts.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    shown = f"[{host}]" if ":" in host else host
    say(f"Serving metrics of {uri} at http://{shown}:{server.server_port}/metrics (Press Ctrl-C to stop)", err=True)
    with server:
        server.serve_forever()
    source.close()

"""Celery bootsteps: where a worker starts and stops the transfer loop."""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals
from celery.utils.log import get_logger

from celery_delayq.config import settings_of
from celery_delayq.server import check_server
from celery_delayq.transport import Transport
from celery_delayq.transport.eta import DUE_PROPERTY

logger = get_logger(__name__)


class Transfer(bootsteps.StartStopStep):
    """Transfers due messages while the worker consumes.

    A consumer step, and therefore started anew with every connection: so the loop serves the server from which the
    worker consumes, also after a failover to another URL.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        self.settings = settings_of(consumer.app)
        self._server_checked = False
        signals.task_received.connect(run_when_received, dispatch_uid="celery_delayq.run_when_received")
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        """Start the loop.

        Raises:
            UnsupportedServer: the server is too old; the worker ends with that message.
        """
        transport = consumer.connection.transport
        if not isinstance(transport, Transport):
            logger.warning(
                "DelayQ(app) has no effect: the broker URL is %s, so countdown tasks wait in the memory of workers. "
                "Begin the URL with delayq:// instead of redis://.",
                consumer.connection.as_uri(),
            )
            return
        if not self._server_checked:
            for finding in check_server(consumer.connection.default_channel.plain_client):
                logger.log(finding.level, finding.message)
            self._server_checked = True
        transport.start_transfer(self.settings)

    def stop(self, consumer: Any) -> None:
        """Stop the loop; others take over at once."""
        transport = getattr(consumer.connection, "transport", None)
        if isinstance(transport, Transport):
            transport.stop_transfer()


def run_when_received(request: Any, **kwargs: Any) -> None:
    """Make a worker run a message that has waited in a delayed queue, instead of waiting for its eta once more.

    It was due by the server's clock; a worker whose own clock is slow must neither hold it nor count it as
    prefetched. The task still finds its eta in `self.request.eta`.

    Private of Celery (5.6 and 5.7): `Request._eta`, since the worker's strategy decides by the read-only property
    `eta`. `task_received` is sent just before.
    """
    if DUE_PROPERTY in (request.message.properties or {}):
        request._eta = None

"""`app.control` of an app with DelayQ: commands that revoke a task also remove it from Redis."""

from __future__ import annotations

from contextlib import suppress
from logging import getLogger
from typing import Any

from celery.app.control import Control
from kombu.exceptions import OperationalError
from kombu.pidbox import Node
from redis.exceptions import ResponseError

from celery_delayq.publishing.revocation import revoke_ids, revoke_stamped
from celery_delayq.queue.connections import refusals
from celery_delayq.transport import Transport
from celery_delayq.transport.replicas import NotReplicated
from celery_delayq.transport.wrong_server import refusing_wrong_server

#: Commands that revoke tasks by id.
BY_ID = ("revoke", "terminate")
BY_STAMPS = "revoke_by_stamped_headers"


logger = getLogger(__name__)


class _Node(Node):
    """A worker that answers remote control, see kombu. An answer that Redis refuses for now is left out."""

    def reply(self, *args: Any, **kwargs: Any) -> None:
        """Answer, see kombu. Celery would log a traceback, and connect its remote control again."""
        try:
            super().reply(*args, **kwargs)
        except (ResponseError, OperationalError) as exc:
            if not refusals.note(exc.__cause__ or exc, logger):
                raise


class DelayqControl(Control):
    """Celery's remote control, which also revokes tasks that wait in delayed queues.

    Hook of Celery (5.6 and 5.7): `Control.broadcast`. All callers use it: `revoke` and `terminate`, also of results
    and groups, `celery control revoke`, and Flower.
    """

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        if self.mailbox.node_cls is Node:
            self.mailbox.node_cls = _Node

    def broadcast(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        destination: Any = None,
        connection: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Send a command to the workers. If it revokes tasks, first remove those that wait.

        `destination` does not matter for waiting tasks, because no worker has them yet.

        Raises:
            kombu.exceptions.OperationalError: the server cannot be reached, or refuses a queue that may hold such
                tasks. If possible, the command was sent to the workers anyway.
        """
        try:
            if command in BY_ID or command == BY_STAMPS:
                self._revoke_waiting(command, {**(arguments or {}), **options}, connection)
        except Exception:
            with suppress(Exception):
                super().broadcast(command, arguments, destination, connection, *args, **options)
            raise
        return super().broadcast(command, arguments, destination, connection, *args, **options)

    def _revoke_waiting(self, command: str, arguments: dict[str, Any], connection: Any) -> None:
        with self.app.connection_or_acquire(connection) as conn:
            if not isinstance(conn.transport, Transport):
                return
            try:
                conn.ensure_connection(max_retries=1)
                channel = conn.default_channel
                with refusing_wrong_server(channel.plain_client):
                    revoke_waiting(self.app, channel, command, arguments)
            except NotReplicated:
                raise
            except (OperationalError, *conn.connection_errors, ResponseError) as exc:
                raise OperationalError(f"cannot revoke all waiting tasks, some may still run: {exc}") from exc


def revoke_waiting(app: Any, channel: Any, command: str, arguments: dict[str, Any], eventer: Any = None) -> None:
    """Revoke the waiting tasks that a remote control command names; see `revocation`."""
    if command == BY_STAMPS:
        revoke_stamped(app, channel, _stamps(arguments.get("headers")), eventer=eventer)
        return
    ids = arguments.get("task_id") or ()
    revoke_ids(app, channel, [ids] if isinstance(ids, str) else ids, eventer=eventer)


def _stamps(headers: Any) -> dict[str, Any]:
    """Return the headers of a command. `celery control` sends a list of `name=value`."""
    if isinstance(headers, dict):
        return headers
    stamps: dict[str, Any] = {}
    for name, _, value in (header.partition("=") for header in headers or ()):
        stamps.setdefault(name, []).append(value)
    return stamps

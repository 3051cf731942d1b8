"""`app.control` of an app with DelayQ: what tells workers to revoke a task removes it from Redis, too."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from celery.app.control import Control
from kombu.exceptions import OperationalError
from kombu.utils.imports import symbol_by_name
from redis.exceptions import ResponseError

from celery_delayq.revocation import revoke_ids, revoke_stamped
from celery_delayq.transport import Transport

#: Commands by which task ids are revoked.
BY_ID = ("revoke", "terminate")
BY_STAMPS = "revoke_by_stamped_headers"


class DelayqControl(Control):
    """Celery's remote control, which also revokes tasks that wait in delayed queues.

    Hook of Celery (5.6 and 5.7): `Control.broadcast`. Everything goes through it: `revoke` and `terminate`, those of
    results and groups, `celery control revoke`, and Flower.
    """

    def broadcast(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        destination: Any = None,
        connection: Any = None,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Send a command to the workers, see Celery; first, if it revokes tasks, remove those that wait.

        They are removed whatever `destination` says: a task that waits is with no worker.

        Raises:
            kombu.exceptions.OperationalError: the server cannot be reached, or refuses a queue in which there may be
                such tasks. The command was sent nevertheless, if that was possible.
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
                revoke_waiting(self.app, conn.default_channel, command, arguments)
            except (OperationalError, *conn.connection_errors, ResponseError) as exc:
                raise OperationalError(f"tasks to revoke may still wait: {exc}") from exc


def revoke_waiting(app: Any, channel: Any, command: str, arguments: dict[str, Any], eventer: Any = None) -> None:
    """Revoke the waiting tasks that a remote control command names, see `revocation`."""
    if command == BY_STAMPS:
        revoke_stamped(app, channel, _stamps(arguments.get("headers")), eventer=eventer)
        return
    ids = arguments.get("task_id") or ()
    revoke_ids(app, channel, [ids] if isinstance(ids, str) else ids, eventer=eventer)


def _stamps(headers: Any) -> dict[str, Any]:
    """Return the headers of a command; those of `celery control` are a list of `name=value`."""
    if isinstance(headers, dict):
        return headers
    stamps: dict[str, Any] = {}
    for name, _, value in (header.partition("=") for header in headers or ()):
        stamps.setdefault(name, []).append(value)
    return stamps


def use_control(app: Any) -> None:
    """Give an app our `control`, also if it has used its own already; does nothing twice."""
    if isinstance(app.control_cls, partial) and app.control_cls.func is make_control:
        return
    # A factory: the app's own class is imported when it is needed, and the app can still be pickled.
    app.control_cls = partial(make_control, app.control_cls)
    app.__dict__.pop("control", None)


def make_control(base: Any, app: Any) -> Control:
    """Return the control of an app whose own class is `base`, or has that name."""
    base = symbol_by_name(base)
    if base is Control:
        return DelayqControl(app=app)
    return type(base.__name__, (DelayqControl, base), {"__module__": base.__module__})(app=app)

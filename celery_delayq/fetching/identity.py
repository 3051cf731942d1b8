"""Identity: the server's name for a connection."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis import exceptions

from celery_delayq.queue.connections import as_text, passing_refusal


class Identity(NamedTuple):
    """The server's name for a connection: its id, and its address, because a restarted server reuses ids."""

    client_id: str
    address: str


def identify(connection: Any) -> Identity | None:
    """Ask the server for the identity of an idle connection; None if the server never tells this user.

    Raises:
        redis.ResponseError: it refuses for now.
    """
    connection.send_command("CLIENT", "INFO")
    try:
        reply = connection.read_response()
    except exceptions.ResponseError as exc:
        if passing_refusal(exc):
            raise
        return None
    fields = dict(field.partition("=")[::2] for field in as_text(reply).split())
    return Identity(fields["id"], fields["addr"])

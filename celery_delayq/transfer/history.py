"""History: notices that the data of the server lost what was written, and says how much.

Redis names the history of its data by a replication id, and counts its bytes by an offset. A replica that becomes the
master takes a new id, and remembers the old one and the offset up to which it followed. What the old master had beyond
that is lost. So somebody has to know what the old master had: the history is read now and then while all is well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import ERROR, INFO, WARNING, Logger
from typing import Any, NamedTuple

import redis
from redis import exceptions

#: How often to read the history, in seconds: of a replicated server; of one that is written to little; of one without
#: replicas.
REPLICATED_S, QUIET_S, ALONE_S = 1.0, 8.0, 30.0

#: A server that writes fewer bytes a second than this is quiet. Idle workers write less.
_QUIET_BYTES_S = 10_000


@dataclass(frozen=True)
class Moment:
    """What a master said about its data at a moment.

    Attributes:
        address: host and port, or the path of the socket, of the server.
        id: the replication id, which names the history of its data.
        offset: how many bytes of replication it has written; 0 if it never had a replica.
        second_id: the replication id of the master that it followed before; zeros if there was none.
        second_offset: the offset from which on it no longer followed that master; -1 if there was none.
        is_replicated: whether it keeps what it writes for replicas, as it does within an hour after the last one left.
        run: the id of the server's process.
        has_aof: whether it writes an append-only file.
        unsaved: how many changes its last snapshot lacks.
    """

    address: str
    id: str
    offset: int
    second_id: str
    second_offset: int
    is_replicated: bool
    run: str
    has_aof: bool
    unsaved: int


class Loss(NamedTuple):
    """What happened between two moments: a logging level and a sentence."""

    level: int
    message: str


def moment_of(info: Mapping[str, Any], address: str = "") -> Moment | None:
    """Read a moment from a reply to INFO; None if the server is no master, or does not tell."""
    if info.get("role") != "master" or "master_replid" not in info:
        return None
    return Moment(
        address,
        str(info["master_replid"]),
        int(info.get("master_repl_offset", 0)),
        str(info.get("master_replid2", "")),
        int(info.get("second_repl_offset", -1)),
        bool(info.get("repl_backlog_active", 0)),
        str(info.get("run_id", "")),
        bool(info.get("aof_enabled", 0)),
        int(info.get("rdb_changes_since_last_save", 0)),
    )


def compare(before: Moment, after: Moment, age_s: float, full_age_s: float) -> Loss | None:
    """Return what happened between two moments; None if the same history went on.

    Args:
        before: what the master said when it was last asked.
        after: what the master says now.
        age_s: how long ago it was last asked for its offset, in seconds.
        full_age_s: how long ago it was last asked for everything, in seconds.
    """
    stays = after.address == before.address
    if after.id == before.id:
        if after.offset >= before.offset:
            return None
        what, followed = f"Redis at {after.address} has older data than before", after.offset
    elif stays and after.run == before.run and set(after.second_id) <= {"0"}:
        return None  # its first replica came, or the first one after an hour without any: it begins to count
    else:
        what = (
            f"Redis at {after.address} was restarted, or failed over"
            if stays
            else f"Redis failed over: the master is {after.address} now, and no longer {before.address}"
        )
        if after.second_id != before.id:
            return Loss(WARNING, f"{what}. {_untold(before, full_age_s) if stays else _UNTOLD}")
        followed = after.second_offset - 1
    known = f"as far as this worker knows, which last asked {age_s:.1f} s ago"
    lost = before.offset - followed
    if lost <= 0:
        return Loss(INFO if stays else WARNING, f"{what}. No write was lost, {known}.")
    return Loss(
        ERROR,
        f"{what}. At least {lost} bytes of replication are lost, {known}: delayed tasks may be gone, others may run "
        "again. The transport option replicas makes callers wait until replicas have what they write.",
    )


_UNTOLD = "How much was lost cannot be told: the new master does not say up to where it followed the old one."


def _untold(before: Moment, full_age_s: float) -> str:
    """Return what may be lost if a server has loaded what it had on disk."""
    if before.has_aof:
        return "Its append-only file may lack the last writes: with appendfsync everysec, those of a second."
    lacked = f"Its last snapshot lacked {before.unsaved} changes, {full_age_s:.1f} s ago"
    return f"{lacked}: they are lost unless a shutdown saved them."


def address_of(client: redis.Redis) -> str:
    """Return where a client is connected to: host and port, or the path of a socket."""
    pool: Any = client.connection_pool
    master = getattr(pool, "master_address", None)  # with Sentinel
    if master:
        return f"{master[0]}:{master[1]}"
    options = pool.connection_kwargs
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


class History:
    """What a process knows about the history of its server. For one thread at a time; it outlives connections.

    Args:
        logger: where to say what happened.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._last: Moment | None = None
        #: When that was read (monotonic).
        self._read_at = 0.0
        #: When everything was last read (monotonic).
        self._full_read_at = 0.0
        #: When to read again (monotonic).
        self.next_at = 0.0

    def read(self, client: redis.Redis, *, is_new: bool = False) -> None:
        """Read the history of the server, and say what happened since the last time.

        Args:
            client: a client of the server.
            is_new: whether it has just connected; otherwise the little that changes all the time is read in between.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        asked = time.monotonic()
        self.next_at = asked + ALONE_S
        before, full_read_at = self._last, self._full_read_at
        try:
            now = self._read_offset(client, asked) if before and not is_new else None
            if now is None:
                now = moment_of(client.info(), address_of(client))
                full_read_at = asked
        except exceptions.ResponseError as exc:
            self._logger.debug("Cannot read the replication id of Redis: %s", exc)
            return
        if now is None:
            return
        age_s, full_age_s = asked - self._read_at, asked - self._full_read_at
        self._last, self._read_at, self._full_read_at = now, asked, full_read_at
        if now.is_replicated:  # also while its replicas are away: then it has the most to lose
            is_quiet = before is not None and now.offset - before.offset < _QUIET_BYTES_S * age_s
            self.next_at = asked + (QUIET_S if is_quiet else REPLICATED_S)
        loss = before and compare(before, now, age_s, full_age_s)
        if loss:
            self._logger.log(loss.level, "%s", loss.message)

    def hurry(self) -> None:
        """Read a replicated server soon: something was written, though nothing was for a while."""
        if self._last is not None and self._last.is_replicated:
            self.next_at = min(self.next_at, self._read_at + REPLICATED_S)

    def _read_offset(self, client: redis.Redis, asked: float) -> Moment | None:
        """Return the last moment with a new offset; None if all has to be read."""
        assert self._last is not None
        if asked >= self._full_read_at + ALONE_S:
            return None
        info = client.info("replication")
        if info.get("role") != "master" or str(info.get("master_replid")) != self._last.id:
            return None
        return replace(self._last, offset=int(info["master_repl_offset"]))

"""FailoverLog: says what a failover lost, as far as Redis tells.

Redis names the history of its data by a replication id, and counts its bytes by an offset. A replica that becomes the
master takes a new id, and remembers the old one and the offset up to which it followed. What the old master had beyond
that is lost. So somebody has to know what the old master had: the offset is read now and then while all is well.
"""

from __future__ import annotations

import time
from logging import ERROR, WARNING, Logger
from typing import Any, NamedTuple

import redis
from redis import exceptions

from celery_delayq.queue.connections import address_of, is_cluster

#: How often to read the offset, in seconds: of a replicated server; of one that is written to little; of one without
#: replicas.
REPLICATED_S, QUIET_S, ALONE_S = 1.0, 8.0, 30.0

#: A server that writes fewer bytes a second than this is quiet. Idle workers write less.
_QUIET_BYTES_S = 10_000


class Moment(NamedTuple):
    """What a master said of its data: where it is, its replication id, its offset, and when that was (monotonic)."""

    address: str
    id: str
    offset: int
    at: float


#: Replication id -> what the master with it said last: what a process knows of all servers. It outlives connections.
Moments = dict[str, Moment]


class FailoverLog:
    """Follows the history of the data of one server. For one thread at a time.

    Args:
        logger: where to say what was lost.
        moments: what is known, also of former servers.
    """

    def __init__(self, logger: Logger, moments: Moments | None = None) -> None:
        self._logger = logger
        self._moments = {} if moments is None else moments
        #: When to read again, and how soon if something is written (monotonic).
        self.next_at = self._soon_at = 0.0

    def hurry(self) -> None:
        """Read a replicated server soon: something was written, though nothing was for a while."""
        self.next_at = min(self.next_at, self._soon_at)

    def read(self, client: redis.Redis) -> None:
        """Read the offset of the server, and say what was lost since the last time.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        asked = time.monotonic()
        self.next_at = self._soon_at = asked + ALONE_S
        try:
            info = client.info("replication")
        except exceptions.ResponseError as exc:
            self._logger.debug("Cannot read the replication id of Redis: %s", exc)
            return
        if info.get("role") != "master" or "master_replid" not in info:
            return
        now = Moment(address_of(client), str(info["master_replid"]), int(info["master_repl_offset"]), asked)
        before = self._moments.get(now.id) or self._moments.get(str(info.get("master_replid2")))
        if before is None and not is_cluster(client):  # on a cluster, another one's
            before = next(iter(self._moments.values()), None)
        if before is not None:
            self._moments.pop(before.id, None)
        self._moments[now.id] = now
        if info.get("repl_backlog_active"):  # also while its replicas are away: then it has the most to lose
            is_quiet = before is not None and now.offset - before.offset < _QUIET_BYTES_S * (asked - before.at)
            self.next_at, self._soon_at = asked + (QUIET_S if is_quiet else REPLICATED_S), asked + REPLICATED_S
        if before is not None and (before.id != now.id or before.offset > now.offset):
            self._compare(before, now, info)

    def _compare(self, before: Moment, now: Moment, info: dict[str, Any]) -> None:
        """Say what was lost between two moments, if the history of the data did not just go on."""
        former_id, followed = str(info.get("master_replid2", "")), int(info.get("second_repl_offset", -1)) - 1
        if now.id == before.id:  # it has loaded older data
            former_id, followed = now.id, now.offset
        lost, stays = before.offset - followed, now.address == before.address
        if stays and (set(former_id) <= {"0"} or (former_id == before.id and lost <= 0)):
            return  # it lost nothing; or it had no replicas, and either was restarted, or has its first one
        what = f"Redis failed over: the master is {now.address} now, and no longer {before.address}"
        if stays:
            what = f"Redis at {now.address} was restarted, or failed over"
        known = f"as far as this worker knows, which last asked {now.at - before.at:.1f} s ago"
        level, loss = WARNING, f"No write was lost, {known}"
        if former_id != before.id:
            loss = "How much was lost cannot be told: the new master does not say up to where it followed the old one"
        elif lost > 0:
            level = ERROR
            loss = (
                f"At least {lost} bytes of replication are lost, {known}: delayed tasks may be gone, others may run "
                "again. The transport option replicas makes callers wait until replicas have what they write"
            )
        self._logger.log(level, "%s. %s.", what, loss)

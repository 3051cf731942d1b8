"""ScheduleStore: records, states and errors of periodic entries in Redis. It knows neither Celery nor their meaning.

A record holds the definition of an entry; all records are in `delayq:schedule`. A state holds the planned occurrence.
States are in `delayq:schedule:{Q}`, in the slot of the delayed queue that gets the occurrence, so that one script can
write both. Records and states are JSON. They are compared as stored bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import keys
from celery_delayq.queue.call import Call, T, run_each
from celery_delayq.queue.codec import message_key
from celery_delayq.queue.connections import LOST, at_server_of, is_cluster
from celery_delayq.queue.delayed_queue import DelayedQueue, database_of
from celery_delayq.queue.redirection import REDIRECTIONS
from celery_delayq.queue.registry import is_wrong_type, registered
from celery_delayq.schedule import scripts
from celery_delayq.schedule.records import UNKNOWN, Record, Seen
from celery_delayq.schedule.scripts import Announced, Planned, Step
from celery_delayq.transport.replicas import NotReplicated

#: How long replicas are not waited for after they did not answer, in seconds.
_HURRIED_S = 5.0

#: What means on a cluster that a node is away, or that its slot is on its way to another one.
_AWAY = (*LOST, *REDIRECTIONS)

#: Number of fields per page of a HASH, and of scripts per pipeline.
_PAGE, _BATCH = 1000, 100


class NodeLost(redis.ConnectionError):
    """The node of a queue is away, or gives it to another one; other nodes of the cluster may serve theirs."""


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Add the name of the key to the server's WRONGTYPE error."""
    try:
        yield
    except redis.ResponseError as exc:
        if "WRONGTYPE" not in str(exc):  # not startswith: Redis 6.2 puts the place in the script first
            raise
        text = f"WRONGTYPE: {key} is not a HASH; another program wrote it. Delete or rename it"
        raise redis.ResponseError(text) from exc


class ScheduleStore:
    """Reads and writes the schedule of one Redis database.

    Threads may share it if they may share the client. Every method raises `redis.RedisError` if the server is away or
    refuses a command.

    Args:
        client: any `redis.Redis`; `decode_responses` does not matter.
        keyprefix: kombu's `global_keyprefix`.
        mirror_list: also write Redisson's delay list; see `DelayedQueue`.
        writer: executes changes; by default `client`. See `DelayedQueue`.
        keeper: executes what has to outlive a failover of its node before another node may go on, and waits shortly for
            replicas; None if nobody wants that, or if there is one server, whose replicas have all earlier writes.
        on_away: called with a key whose node of a cluster is away.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        keyprefix: str = "",
        mirror_list: bool = False,
        writer: redis.Redis | None = None,
        keeper: Any = None,
        on_away: Callable[[str], None] = lambda key: None,
    ) -> None:
        self.client = client
        self.writer = client if writer is None else writer
        self.keys = keys.ScheduleKeys.of(keyprefix, database_of(client), together=is_cluster(client))
        self._keyprefix = keyprefix
        self._mirror_list = mirror_list
        self._queues: dict[str, DelayedQueue] = {}
        self._keeper = keeper
        self._on_away = on_away
        #: Queue -> until when its replicas are not waited for, since they did not answer, by the monotonic clock.
        self._hurried_until: dict[str, float] = {}

    def queue(self, name: str) -> DelayedQueue:
        """Return the delayed queue of a broker list."""
        if name not in self._queues:
            self._queues[name] = DelayedQueue(
                self.client, name, mirror_list=self._mirror_list, keyprefix=self._keyprefix
            )
        return self._queues[name]

    def pubsub(self) -> Any:
        """Return a subscription for the channel of changes; on a cluster, at the node with the periodic tasks."""
        return at_server_of(self.client, self.keys.definitions).pubsub()

    def server(self) -> str:
        """Return which server has the periodic tasks; on a cluster, that may change. Empty if there is only one."""
        if not is_cluster(self.client):
            return ""
        return str(self.client.node_of(self.keys.definitions).address)  # type: ignore[attr-defined]

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms; on a cluster, that of the node with the periodic tasks."""
        seconds, microseconds = at_server_of(self.client, self.keys.definitions).time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    # -- records

    def pages(self) -> Iterator[dict[str, bytes]]:
        """Yield all records as stored, page by page."""
        yield from ({name: raw for name, raw in page if name} for page in self._pages(self.keys.definitions))

    def records(self) -> dict[str, bytes]:
        """Return all records as stored."""
        return {name: raw for page in self.pages() for name, raw in page.items()}

    def record(self, entry: str) -> bytes:
        """Return the record of an entry as stored; empty if there is none."""
        return self._hash("HGET", self.keys.definitions, entry) or b""

    def records_of(self, entries: Sequence[str]) -> list[bytes]:
        """Return the records of entries as stored; empty for entries without one."""
        if not entries:
            return []
        return [raw or b"" for raw in self._hash("HMGET", self.keys.definitions, *entries)]

    def changes(self) -> int:
        """Return the number of changes of records so far."""
        return int(self._hash("HGET", self.keys.definitions, "") or 0)

    def write_record(self, entry: str, seen: bytes, record: Record | None) -> int:
        """Write or remove a record if it has not changed, and tell all planners. One atomic script.

        Returns the number of the change; 0 if the record had changed.
        """
        with _naming(self.keys.definitions):
            change = (entry, seen, record.dump() if record else b"")
            return scripts.record(self.keys, changes=[change]).run(self.writer)[0]

    def write_records(self, changes: Sequence[tuple[str, bytes, Record | None]]) -> list[int | redis.ResponseError]:
        """Write many records as `write_record` does. Atomic for each one. Returns its number, or the server's error."""
        raw = [(entry, seen, record.dump() if record else b"") for entry, seen, record in changes]
        parts = [raw[start : start + _BATCH] for start in range(0, len(raw), _BATCH)]
        replies = self._run_each([scripts.record(self.keys, changes=part) for part in parts])
        found: list[int | redis.ResponseError] = []
        for part, reply in zip(parts, replies, strict=True):
            if not isinstance(reply, Exception):
                found += reply
            elif isinstance(reply, redis.ResponseError):
                found += [reply] * len(part)
            else:
                raise reply
        return found

    # -- states

    def queues(self) -> set[str]:
        """Return the names of all broker lists that may have states."""
        try:
            return registered(self.client, self._keyprefix)
        except (*LOST, redis.ResponseError) as exc:
            if not self._is_away(exc, keys.registry(self._keyprefix)) and not is_wrong_type(exc):
                raise
        # The registry cannot be read: use the queues in the records.
        names: set[str] = set()
        for raw in self.records().values():
            with suppress(ValueError):
                names.update(Record.parse(raw).queues)
        return names

    def names(self, queue: str) -> Iterator[list[str]]:
        """Yield the names of the entries that have a state in a queue, page by page.

        Raises:
            NodeLost: on a cluster: its node is away.
        """
        schedule = self.queue(queue).keys.schedule
        try:
            yield from ([name for name, _ in page if name] for page in self._pages(schedule))
        except _AWAY as exc:
            if not self._is_away(exc, schedule):
                raise
            raise NodeLost(str(exc)) from exc

    def seen(self, wanted: Sequence[tuple[str, str]], *, partly: bool = False) -> list[Seen]:
        """Return the states of entries, given as (entry, queue); empty if the server refuses the queue.

        Args:
            wanted: the entries.
            partly: whether those at a node of a cluster that is away are `UNKNOWN`, instead of an error.

        Raises:
            NodeLost: on a cluster: a node is away.
        """
        of_queue: dict[str, list[str]] = {}
        for entry, queue in wanted:
            of_queue.setdefault(queue, []).append(entry)
        if not of_queue:
            return []
        pipeline = self.client.pipeline(transaction=False)
        for queue, entries in of_queue.items():
            pipeline.execute_command("HMGET", self.queue(queue).keys.schedule, *entries, "", **{NEVER_DECODE: True})
        found: dict[tuple[str, str], Seen] = {}
        for (queue, entries), reply in zip(of_queue.items(), pipeline.execute(raise_on_error=False), strict=True):
            if self._is_away(reply, self.queue(queue).keys.schedule):
                if not partly:
                    raise NodeLost(str(reply)) from reply
                found.update(dict.fromkeys(((entry, queue) for entry in entries), UNKNOWN))
                continue
            refused = isinstance(reply, redis.ResponseError)
            *states, forgotten = [None] * (len(entries) + 1) if refused else reply
            for entry, raw in zip(entries, states, strict=True):
                found[entry, queue] = Seen(raw or b"", forgotten or b"0")
        return [found[one] for one in wanted]

    def waiting(self, wanted: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Return for each message, given as (task id, queue), whether it still waits in its delayed queue.

        None means that this is not known: on a cluster, its node is away.
        """
        if not wanted:
            return []
        pipeline = self.client.pipeline(transaction=False)
        for task_id, queue in wanted:
            pipeline.hexists(self.queue(queue).keys.index, message_key(task_id))
        replies = pipeline.execute(raise_on_error=False)
        return [
            None if self._is_away(reply, self.queue(queue).keys.index) else reply is True or reply == 1
            for (_, queue), reply in zip(wanted, replies, strict=True)
        ]

    def plan(self, steps: Sequence[Step]) -> list[Planned | redis.RedisError]:
        """Move entries to their next occurrences; see `plan.lua`. Atomic for each entry.

        Returns the result for each entry, or the server's error, or NodeLost: nobody knows whether it has moved.
        """
        just_registered = {name for name in {step.queue for step in steps if step.state} if self.queue(name).register()}
        replies = self._plan_each(steps)
        for at, done in enumerate(replies):
            while isinstance(done, Planned) and done.outcome == scripts.ELSEWHERE:
                there = self.queue(done.state.decode("utf-8", "surrogateescape")).keys
                (done,) = self._plan_each([steps[at]], there)
                replies[at] = done
        alone = {
            step.queue for step, done in zip(steps, replies, strict=True) if isinstance(done, Planned) and done.alone
        }
        for name in alone - just_registered:
            # The queue was empty: a failover may have undone its registration.
            with suppress(redis.ResponseError):
                self.queue(name).register(again=True)
        return replies

    def _plan_each(
        self, steps: Sequence[Step], there: keys.QueueKeys | None = None
    ) -> list[Planned | redis.RedisError]:
        replies = self._run_each([self._call(step, there) for step in steps])
        found: list[Planned | redis.RedisError] = []
        for step, reply in zip(steps, replies, strict=True):
            if self._is_away(reply, self.queue(step.queue).keys.schedule):
                found.append(NodeLost(str(reply)))
            else:
                assert isinstance(reply, (Planned, redis.RedisError))
                found.append(reply)
        return found

    def _call(self, step: Step, there: keys.QueueKeys | None = None) -> Call[Planned]:
        return scripts.plan(self.queue(step.queue).keys, step, mirrored=self._mirror_list, there=there)

    def forget(self, entry: str, queue: str, seen: Seen) -> bool:
        """Forget the state of an entry and withdraw its message, if the state has not changed. One atomic script.

        Returns whether the entry has no state there now. If so, steps that were decided before have no effect there.
        """
        state = seen.state
        done = self._plan_one(Step(entry, queue, seen, b"", withdraw=state.task_id if state else ""))
        while done.outcome == scripts.CHANGED and not done.state:  # others forgot it first; count this call too
            done = self._plan_one(Step(entry, queue, Seen(b"", done.forgotten), b""))
        return done.outcome == scripts.DONE

    def leave(self, entry: str, queue: str, seen: Seen, withdraw: str) -> int:
        """Forget the state of an entry that leaves a queue, if it has not changed, and withdraw its message.

        Returns the outcome, see `Planned`: GONE if there is a message to withdraw that no longer waits.
        """
        return self._plan_one(Step(entry, queue, seen, b"", withdraw=withdraw, must_wait=bool(withdraw))).outcome

    def check_kept(self, entry: str, queue: str, stored: Seen | bytes) -> bool:
        """Check that a replica has what an entry has sent in a queue that it leaves.

        Args:
            entry: its name.
            queue: name of the queue.
            stored: the state there, as it was seen; or the record of the entry, as it was written.

        Returns:
            False if that is not stored any more: another planner has changed it, or a failover has undone it.

        Raises:
            NotReplicated: no replica has it, or had not just before, when it was asked.
        """
        if self._keeper is None:
            return True
        write: list[Call[Any]]
        if isinstance(stored, Seen):
            key, write = self.queue(queue).keys.schedule, [self._call(Step(entry, queue, stored, stored.raw))]
        else:
            key, write = self.keys.definitions, [scripts.record(self.keys, changes=[(entry, stored, stored)])]
        try:
            if time.monotonic() >= self._hurried_until.get(queue, 0.0):
                (reply,) = run_each(self._keeper, write)
                if isinstance(reply, Exception):
                    raise NodeLost(str(reply)) if self._is_away(reply, key) else reply
                return bool(reply.outcome == scripts.DONE if isinstance(stored, Seen) else reply[0])
        except NotReplicated:
            self._hurried_until[queue] = time.monotonic() + _HURRIED_S
        raise NotReplicated(f"no replica has what was sent to queue {queue!r}; the entry leaves it when one does")

    def forget_all(self, entry: str, queues: Sequence[str]) -> None:
        """Forget the states of an entry in these queues, even if they have changed; see `forget`."""
        for queue in queues:
            while not self.forget(entry, queue, *self.seen([(entry, queue)])):
                pass

    def _plan_one(self, step: Step) -> Planned:
        (done,) = self.plan([step])
        if isinstance(done, Exception):
            raise done
        return done

    def rest(self, entry: str, queue: str) -> None:
        """Withdraw the message of a paused entry. A message that was already transferred still runs."""
        while True:
            (seen,) = self.seen([(entry, queue)])
            state = seen.state
            if seen.raw and state is None:  # the state cannot be parsed, so its message is unknown
                self.forget(entry, queue, seen)
            if state is None or state.at_ms is None:
                return
            idle = replace(state, at_ms=None, task_id="")
            must_wait = bool(state.task_id)
            done = self._plan_one(Step(entry, queue, seen, idle.dump(), withdraw=state.task_id, must_wait=must_wait))
            if done.outcome == scripts.GONE:
                idle = replace(idle, last_ms=state.at_ms, runs=state.runs + 1)
                done = self._plan_one(Step(entry, queue, seen, idle.dump()))
            if done.outcome == scripts.DONE:
                return

    # -- planners and errors

    def announce(self, **sign: Any) -> Announced:
        """Give a planner's sign of life; see `scripts.announce`."""
        with _naming(self.keys.configurations):
            return scripts.announce(self.keys, **sign).run(self.client)

    def errors(self) -> dict[str, str]:
        """Return the errors: entry -> why it could not be planned."""
        return {name: raw.decode("utf-8", "replace") for page in self._pages(self.keys.errors) for name, raw in page}

    def error(self, entry: str) -> str | None:
        """Return why an entry could not be planned, or None."""
        return (self._hash("HGET", self.keys.errors, entry) or b"").decode("utf-8", "replace") or None

    def has_overdue(self, queues: Iterable[str], before_ms: int) -> bool:
        """Return whether one of these queues has a waiting message that was due before `before_ms`, or may have one."""
        pipeline = self.client.pipeline(transaction=False)
        names = [self.queue(queue).keys.timeout_set for queue in queues]
        for name in names:
            pipeline.zcount(name, "-inf", before_ms)
        counts = zip(names, pipeline.execute(raise_on_error=False), strict=True)
        return any(self._is_away(count, name) or (isinstance(count, int) and count > 0) for name, count in counts)

    def set_error(self, entry: str, error: str | None) -> None:
        """Store why an entry could not be planned; None clears the error."""
        if error is None:
            self.client.hdel(self.keys.errors, entry)
        else:
            self.client.hset(self.keys.errors, entry, error)

    # -- helpers

    def _is_away(self, reply: object, key: str) -> bool:
        """Return whether a reply is the error of a node of a cluster that is away; tell `on_away` of the key if so."""
        if not isinstance(reply, _AWAY) or not is_cluster(self.client):
            return False
        self._on_away(key)
        return True

    def _hash(self, command: str, key: str, *args: str | int) -> Any:
        """Return the reply to a command for a HASH, as bytes."""
        with _naming(key):
            return self.client.execute_command(command, key, *args, **{NEVER_DECODE: True})

    def _pages(self, key: str) -> Iterator[list[tuple[str, bytes]]]:
        """Yield the fields of a HASH, page by page. A field that changes in the meantime has its old or its new value.

        Names that are not UTF-8 are skipped: no client of this package can write or change them.
        """
        cursor = None
        while cursor != 0:
            cursor, flat = self._hash("HSCAN", key, cursor or 0, "COUNT", _PAGE)
            cursor = int(cursor)
            page = []
            for name, raw in flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True):
                with suppress(UnicodeDecodeError):
                    page.append((name.decode(), raw))
            yield page

    def _run_each(self, calls: Sequence[Call[T]]) -> list[T | Exception]:
        slices = (calls[start : start + _BATCH] for start in range(0, len(calls), _BATCH))
        return [reply for part in slices for reply in run_each(self.writer, part)]

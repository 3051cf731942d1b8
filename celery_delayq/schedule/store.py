"""ScheduleStore: records, states and errors of periodic entries in Redis; knows neither Celery nor what they mean.

A record says what an entry is; it is in `delayq:schedule`. A state says which occurrence is planned; it is in
`delayq:schedule:{Q}`, with the delayed queue to which the occurrence is offered, so that one script can do both.
Records and states are JSON, and compared as the bytes they are stored as.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError

from celery_delayq import keys
from celery_delayq.codec import message_key
from celery_delayq.delayed_queue import DelayedQueue, database_of
from celery_delayq.registry import is_wrong_type, registered
from celery_delayq.schedule import scripts
from celery_delayq.schedule.records import Record, Seen, State, Step
from celery_delayq.schedule.scripts import Announced, Planned
from celery_delayq.scripts import load

#: Fields a page of a HASH has, and scripts a pipeline has.
_PAGE, _BATCH = 1000, 100


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Let the server's refusal of a key of another type name it."""
    try:
        yield
    except redis.ResponseError as exc:
        if "WRONGTYPE" not in str(exc):  # Redis 6.2 says where in the script, first
            raise
        raise redis.ResponseError(f"WRONGTYPE: {key} is no HASH; something else has written it") from exc


class ScheduleStore:
    """Reads and writes the schedule of one Redis database.

    It may be shared by threads if the client may. Every method raises `redis.RedisError` when the server is away or
    refuses.

    Args:
        client: any `redis.Redis`; what it decodes does not matter.
        keyprefix: kombu's `global_keyprefix`.
        mirror_list: write Redisson's delay list too, see `DelayedQueue`.
    """

    def __init__(self, client: redis.Redis, *, keyprefix: str = "", mirror_list: bool = False) -> None:
        self.client = client
        self.keys = keys.ScheduleKeys.of(keyprefix, database_of(client))
        self._keyprefix = keyprefix
        self._mirror_list = mirror_list
        self._queues: dict[str, DelayedQueue] = {}

    def queue(self, name: str) -> DelayedQueue:
        """Return the delayed queue of a broker list."""
        if name not in self._queues:
            self._queues[name] = DelayedQueue(
                self.client, name, mirror_list=self._mirror_list, keyprefix=self._keyprefix
            )
        return self._queues[name]

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    # -- records

    def pages(self) -> Iterator[dict[str, bytes]]:
        """Yield all records as stored, some at a time."""
        for page in self._pages(self.keys.definitions):
            yield {name: raw for name, raw in page if name}

    def records(self) -> dict[str, bytes]:
        """Return all records as stored."""
        return {name: raw for page in self.pages() for name, raw in page.items()}

    def record(self, entry: str) -> bytes:
        """Return the record of an entry as stored; empty if there is none."""
        return self._get(self.keys.definitions, entry)

    def records_of(self, entries: Sequence[str]) -> list[bytes]:
        """Return the records of entries as stored; empty for those that have none."""
        found: list[bytes] = []
        for start in range(0, len(entries), _PAGE):
            command = ("HMGET", self.keys.definitions, *entries[start : start + _PAGE])
            with _naming(self.keys.definitions):
                found += [raw or b"" for raw in self.client.execute_command(*command, **{NEVER_DECODE: True})]
        return found

    def changes(self) -> int:
        """Return how many changes of records there were."""
        return int(self._get(self.keys.definitions, "") or 0)

    def write_record(self, entry: str, seen: bytes, record: Record | None) -> int:
        """Write or remove a record if it is still as it was seen, and tell all planners. One atomic script.

        Returns the number of the change; 0 if the record was another one.
        """
        raw = record.dump() if record else b""
        with _naming(self.keys.definitions):
            (number,) = scripts.record(self.client, self.keys, changes=[(entry, seen, raw)])
        return number

    def write_records(self, changes: Sequence[tuple[str, bytes, Record | None]]) -> list[int | redis.ResponseError]:
        """Do what `write_record` does for many; each by itself is atomic. Returns for each that, or the refusal."""
        raw = [(entry, seen, record.dump() if record else b"") for entry, seen, record in changes]
        parts = [raw[start : start + _BATCH] for start in range(0, len(raw), _BATCH)]
        replies = self._run_many("record", [scripts.record_command(self.keys, part) for part in parts])
        found: list[int | redis.ResponseError] = []
        for part, reply in zip(parts, replies, strict=True):
            found += [reply] * len(part) if isinstance(reply, redis.ResponseError) else reply
        return found

    # -- states

    def queues(self) -> set[str]:
        """Return the names of all broker lists that may have states."""
        try:
            return registered(self.client, self._keyprefix)
        except redis.ResponseError as exc:
            if not is_wrong_type(exc):
                raise
        # Without the registry, those that the records name.
        names: set[str] = set()
        for raw in self.records().values():
            with suppress(ValueError):
                names.update(Record.parse(raw).queues)
        return names

    def states(self, queue: str) -> Iterator[dict[str, Seen]]:
        """Yield the states of a queue's entries, some at a time; under an empty name, that of those without one."""
        schedule = self.queue(queue).keys.schedule
        forgotten = self._get(schedule, "") or b"0"
        for page in self._pages(schedule):
            yield {"": Seen(b"", forgotten), **{name: Seen(raw, forgotten) for name, raw in page if name}}

    def seen(self, wanted: Sequence[tuple[str, str]]) -> list[Seen]:
        """Return the states of entries, given as (entry, queue); none where the server refuses the queue."""
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
            refused = isinstance(reply, redis.ResponseError)
            *states, forgotten = [None] * (len(entries) + 1) if refused else reply
            for entry, raw in zip(entries, states, strict=True):
                found[entry, queue] = Seen(raw or b"", forgotten or b"0")
        return [found[one] for one in wanted]

    def waiting(self, wanted: Sequence[tuple[str, str]]) -> list[bool]:
        """Return which messages, given as (task id, queue), still wait in their delayed queues."""
        if not wanted:
            return []
        pipeline = self.client.pipeline(transaction=False)
        for task_id, queue in wanted:
            pipeline.hexists(self.queue(queue).keys.index, message_key(task_id))
        return [one is True or one == 1 for one in pipeline.execute(raise_on_error=False)]

    def plan(self, steps: Sequence[Step]) -> list[Planned | redis.ResponseError]:
        """Move entries to their next occurrences, see `plan.lua`. Each by itself is atomic.

        Returns for each what happened, or how the server refused it.
        """
        for name in {step.queue for step in steps if step.state}:
            self.queue(name).register()
        commands = [
            scripts.plan_command(
                self.queue(step.queue).keys,
                entry=step.entry,
                seen=step.seen.raw,
                forgotten=step.seen.forgotten,
                state=step.state,
                withdraw=message_key(step.withdraw) if step.withdraw else b"",
                must_wait=step.must_wait,
                offer=step.offer,
                mirrored=self._mirror_list,
            )
            for step in steps
        ]
        replies = self._run_many("plan", commands)
        return [reply if isinstance(reply, redis.ResponseError) else Planned.of(reply) for reply in replies]

    def forget(self, entry: str, queue: str, seen: Seen) -> bool:
        """Forget the state of an entry, and withdraw its message, if it is still as it was seen. One atomic script.

        Returns whether it has none there now; then no step that was decided before this will be taken there.
        """
        try:
            task_id = State.parse(seen.raw).task_id if seen.raw else ""
        except ValueError:
            task_id = ""
        done = self._plan_one(Step(entry, queue, seen, b"", withdraw=task_id))
        while done.outcome == scripts.CHANGED and not done.state:  # others forgot; this has to be counted, too
            done = self._plan_one(Step(entry, queue, Seen(b"", done.forgotten), b""))
        return done.outcome == scripts.DONE

    def forget_all(self, entry: str, queues: Sequence[str]) -> None:
        """Forget the states of an entry in these queues, whatever they are, see `forget`."""
        for queue, seen in zip(queues, self.seen([(entry, queue) for queue in queues]), strict=True):
            while not self.forget(entry, queue, seen):
                (seen,) = self.seen([(entry, queue)])

    def _plan_one(self, step: Step) -> Planned:
        (done,) = self.plan([step])
        if isinstance(done, redis.ResponseError):
            raise done
        return done

    def rest(self, entry: str, queue: str) -> None:
        """Withdraw the message of an entry that was paused; what was transferred already runs."""
        while True:
            (seen,) = self.seen([(entry, queue)])
            try:
                state = State.parse(seen.raw) if seen.raw else None
            except ValueError:  # nobody knows its message
                self.forget(entry, queue, seen)
                return
            if state is None or state.at_ms is None:
                return
            idle = replace(state, at_ms=None, task_id="")
            if self._withdraw(entry, queue, seen, state, idle):
                return

    def park(self, entry: str, queue: str, seen: Seen) -> tuple[State, Seen] | None:
        """Withdraw the message of an entry that goes to another queue; its state stays until it is planned there.

        Returns the state as it is then, None if it was not as seen.
        """
        state = State.parse(seen.raw)
        # Of no definition, and like no other: who saw it parked before must not take it for that.
        parked = replace(state, task_id="", fingerprint=uuid.uuid4().hex, parked=True)
        return self._withdraw(entry, queue, seen, state, parked)

    def _withdraw(self, entry: str, queue: str, seen: Seen, state: State, without: State) -> tuple[State, Seen] | None:
        step = Step(entry, queue, seen, without.dump(), withdraw=state.task_id, must_wait=bool(state.task_id))
        done = self._plan_one(step)
        if done.outcome == scripts.GONE:  # it was transferred: the occurrence has passed
            without = replace(without, at_ms=None, last_ms=state.at_ms, runs=state.runs + 1)
            done = self._plan_one(replace(step, state=without.dump(), must_wait=False))
        return (without, Seen(done.state, done.forgotten)) if done.outcome == scripts.DONE else None

    # -- who plans, and what went wrong

    def announce(self, app: str, configuration: str, *, lifetime_s: float, gap_s: float, previous_ms: int) -> Announced:
        """Say that a planner lives, see `announce.lua`."""
        with _naming(self.keys.configurations):
            return scripts.announce(
                self.client,
                self.keys,
                app=app,
                configuration=configuration,
                lifetime_ms=round(lifetime_s * 1000),
                gap_ms=round(gap_s * 1000),
                previous_ms=previous_ms,
            )

    def errors(self) -> dict[str, str]:
        """Return for each entry that could not be planned why."""
        return {name: raw.decode("utf-8", "replace") for name, raw in self._hash(self.keys.errors)}

    def error(self, entry: str) -> str | None:
        """Return why an entry could not be planned, None if it could."""
        return self._get(self.keys.errors, entry).decode("utf-8", "replace") or None

    def has_overdue(self, queues: Iterable[str], before_ms: int) -> bool:
        """Return whether a message that was due before then still waits in one of these queues."""
        pipeline = self.client.pipeline(transaction=False)
        for queue in queues:
            pipeline.zcount(self.queue(queue).keys.timeout_set, "-inf", before_ms)
        return any(isinstance(count, int) and count > 0 for count in pipeline.execute(raise_on_error=False))

    def set_error(self, entry: str, error: str | None) -> None:
        """Write down why an entry could not be planned, or that it could."""
        if error is None:
            self.client.hdel(self.keys.errors, entry)
        else:
            self.client.hset(self.keys.errors, entry, error)

    # -- how

    def _get(self, key: str, entry: str) -> bytes:
        with _naming(key):
            return self.client.execute_command("HGET", key, entry, **{NEVER_DECODE: True}) or b""

    def _hash(self, key: str) -> Iterator[tuple[str, bytes]]:
        return (field for page in self._pages(key) for field in page)

    def _pages(self, key: str) -> Iterator[list[tuple[str, bytes]]]:
        """Yield the fields of a HASH, page by page; one that changes meanwhile as it was or as it is.

        Names that are no UTF-8 are left out: no client of this package could have written or could change them.
        """
        cursor = 0
        while True:
            with _naming(key):
                cursor, flat = self.client.execute_command("HSCAN", key, cursor, "COUNT", _PAGE, **{NEVER_DECODE: True})
            cursor = int(cursor)
            items: Iterable[tuple[bytes, bytes]]
            items = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
            page = []
            for name, raw in items:
                with suppress(UnicodeDecodeError):
                    page.append((name.decode(), raw))
            yield page
            if cursor == 0:
                return

    def _run_many(self, name: str, commands: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        replies: list[Any] = []
        script = load(name)
        for start in range(0, len(commands), _BATCH):
            part = commands[start : start + _BATCH]
            found = self._run_batch(script.sha, part)
            missing = [at for at, reply in enumerate(found) if isinstance(reply, NoScriptError)]
            if missing:
                self.client.script_load(script.text)
                for at, reply in zip(missing, self._run_batch(script.sha, [part[at] for at in missing]), strict=True):
                    found[at] = reply
            replies += found
        return replies

    def _run_batch(self, sha: str, commands: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for keys_, args in commands:
            pipeline.execute_command("EVALSHA", sha, len(keys_), *keys_, *args, **{NEVER_DECODE: True})
        return pipeline.execute(raise_on_error=False)

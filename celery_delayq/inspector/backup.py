"""Export, import and release: move all delayed tasks out of a server and back.

A file of exported tasks is JSON lines in UTF-8:

    {"format": "celery_delayq", "version": 1, "exported_at": ..., "tasks": ...}     number of tasks at the start
    {"queue": ..., "priority": ..., "due_ms": ..., "id": ..., "key": ..., "payload": ...}       one line per task
    {"end": ...}                                                                    number of task lines

`key` is the message key in hex. It identifies a task, because not every message has an `id`. A payload that is not
UTF-8 is stored as `payload_base64`. An entry that another program offered has `entry_base64`, the whole entry, in
place of key and payload. If the last line is missing, the file was cut off.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from celery_delayq.basics.errors import InvalidExport
from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.pages import Criteria, OnProgress, walk
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.queue import scripts
from celery_delayq.queue.call import run_each
from celery_delayq.queue.codec import MESSAGE_KEY_SIZE, OfferId, unpack
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.transport import messages

FORMAT, VERSION = "celery_delayq", 1

#: A path, or an open file for text or bytes.
File = str | os.PathLike[str] | IO[Any]

#: Maximum number of lines in one round trip, and their size in bytes.
_LINES, _BYTES = 200, 1_048_576


@dataclass(frozen=True)
class Imported:
    """Result of an import.

    Attributes:
        stored: number of tasks that were stored.
        waiting: number of tasks that were waiting already, with the same id, due time and content.
    """

    stored: int
    waiting: int


@dataclass(frozen=True)
class Released:
    """Result of a release.

    Attributes:
        released: number of messages that were moved to their broker lists.
        left: number of messages that still wait: they are not tasks and cannot carry an eta, or a running worker
            delayed them again after the release began.
    """

    released: int
    left: int


def export(lists: BrokerLists, file: File, on_progress: OnProgress | None = None, *, queues: Sequence[str] = ()) -> int:
    """Write all waiting tasks, or those of some queues, to a file, and return how many there were.

    The file is written under a temporary name and renamed as the last step, so the path holds either the complete new
    file or the old one. If the process is killed, the unfinished file stays beside it, with a random ending. Only its
    owner can read the file, because it contains task arguments.

    The file contains every task that waits all the time. Tasks that are moved, offered or rescheduled in the meantime
    may be missing.

    Raises:
        OSError: the file cannot be written.
        NodesAway: nodes of a cluster are away, and with them some of the queues. No file appears; an open file gets
            nothing, or no last line if a node was lost in the middle.
    """
    written = 0
    with _writing(file) as write:
        waiting, lost = lists.waiting(*queues)
        lost.check()
        exported_at = to_datetime(lists.now_ms()).isoformat()
        write({"format": FORMAT, "version": VERSION, "exported_at": exported_at, "tasks": sum(waiting.values())})
        for broker_list, tasks in walk(lists, Criteria(tuple(queues)), on_progress):
            for task in tasks:
                write(_line(broker_list, task))
            written += len(tasks)
        write({"end": written})
    return written


def import_(lists: BrokerLists, file: File, on_progress: OnProgress | None = None) -> Imported:
    """Store exported tasks, so that they wait again. Atomic for each task.

    A task that waits already, with the same id, due time and content, is not stored a second time. So an import can be
    repeated, also after an interruption or an error, and several imports can run at once. A task that has run or was
    rescheduled since the export no longer waits in this form, so it is stored.

    Raises:
        InvalidExport: a line is invalid, or the last line is missing. The lines before it were imported.
        OSError: the file cannot be read.
    """
    answers: list[bool] = []
    registered: set[str] = set()
    with _reading(file) as stream:
        reader = _Reader(stream, getattr(stream, "name", "the file"))
        for lines in reader.batches(answers):
            calls = []
            for line in lines:
                queue: DelayedQueue = lists.channel.delayed_queue(lists.channel.broker_list(line.queue, line.priority))
                queue.register(again=queue.name not in registered)
                registered.add(queue.name)
                calls.append(
                    scripts.restore(
                        queue.keys,
                        due_ms=line.due_ms,
                        message_key=line.key,
                        payload=line.payload,
                        mirrored=queue.mirror_list,
                    )
                )
            for reply in run_each(lists.channel.writer, calls):
                if isinstance(reply, Exception):
                    raise reply
                answers.append(reply)
            if lines and on_progress is not None:
                on_progress(len(answers), max(reader.tasks, len(answers)))
    return Imported(sum(answers), len(answers) - sum(answers))


def release(lists: BrokerLists, queue: str | None = None, on_progress: OnProgress | None = None) -> Released:
    """Move all waiting tasks to the broker lists, with their etas. Workers then wait for the etas themselves.

    Tasks move in due order within each list, a hundred per atomic script. A message that is not a task has no eta that
    a worker could wait for, so it stays. Messages that were offered after the release began stay too: workers with
    this package offer released tasks again as they fetch them, and the release would never end.
    """
    began_us = lists.now_us()
    released = left = 0
    for broker_list, tasks in walk(lists, Criteria.of(queue=queue), on_progress):
        movable = [task for task in tasks if task.is_task and not _offered_since(began_us, task)]
        left += len(tasks) - len(movable)
        pairs = [(task.entry, messages.with_eta(task.entry.payload, _eta(task), None)) for task in movable]
        released += sum(lists.delayed_queue(broker_list).release(pairs))
    return Released(released, left)


def _offered_since(when_us: int, task: ScheduledTask) -> bool:
    offer = OfferId.from_bytes(task.entry.id)
    return offer is not None and offer.offered_us > when_us


def _eta(task: ScheduledTask) -> str:
    """Return the eta of a task as its header spells it, or its due time if the two differ."""
    eta = task.headers.get("eta")
    return eta if isinstance(eta, str) and task.eta == task.due else task.due.isoformat()


# -- writing


@contextmanager
def _writing(file: File) -> Iterator[Any]:
    if not isinstance(file, (str, os.PathLike)):
        if not hasattr(file, "write"):
            raise TypeError(f"file must be a path or an open file, not {file!r}")
        binary = isinstance(file, (io.RawIOBase, io.BufferedIOBase)) or "b" in str(getattr(file, "mode", ""))

        def write(line: dict[str, Any]) -> None:
            text = json.dumps(line) + "\n"
            file.write(text.encode() if binary else text)

        yield write
        return
    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():  # a pipe or a device
        with path.open("wb") as stream, _writing(stream) as write:
            yield write
        return
    number, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(number, "wb") as stream:
            with _writing(stream) as write:
                yield write
            stream.flush()
            os.fsync(number)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _line(broker_list: BrokerList, task: ScheduledTask) -> dict[str, Any]:
    entry = task.entry
    offer = OfferId.from_bytes(entry.id)
    line = {
        "queue": broker_list.queue,
        "priority": broker_list.priority,
        "due_ms": entry.score,
        "id": task.id,
    }
    if offer is None:
        return {**line, "entry_base64": base64.b64encode(entry.raw).decode()}
    line["key"] = offer.message_key.hex()
    try:
        return {**line, "payload": entry.payload.decode()}
    except UnicodeDecodeError:
        return {**line, "payload_base64": base64.b64encode(entry.payload).decode()}


# -- reading


@dataclass(frozen=True)
class _Line:
    """A task, or an entry of another program; the latter has an empty key."""

    queue: str
    priority: int
    due_ms: int
    key: bytes
    payload: bytes


@contextmanager
def _reading(file: File) -> Iterator[IO[Any]]:
    if isinstance(file, (str, os.PathLike)):
        with Path(file).open("rb") as stream:
            yield stream
    elif isinstance(file, Iterable) and not isinstance(file, bytes):
        yield file
    else:
        raise TypeError(f"file must be a path or an open file, not {file!r}")


class _Reader:
    """Yields the tasks of a file, and checks that the file is complete."""

    def __init__(self, lines: Iterable[Any], name: str) -> None:
        self.tasks = 0
        self._lines = iter(lines)
        self._name = name
        self._number = 0

    def batches(self, imported: Sized) -> Iterator[list[_Line]]:
        """Yield some tasks at a time. Of a file that cannot be read to its end, those before the error come first.

        Args:
            imported: the tasks that were imported, for the error.
        """
        batch: list[_Line] = []
        size = 0
        try:
            for line in self._tasks():
                batch.append(line)
                size += len(line.payload)
                if len(batch) == _LINES or size >= _BYTES:
                    yield batch
                    batch, size = [], 0
        except (InvalidExport, OSError) as exc:
            yield batch
            if isinstance(exc, InvalidExport):
                exc.imported = len(imported)
            raise
        yield batch

    def _tasks(self) -> Iterator[_Line]:
        first = self._next()
        if first is None or first.get("format") != FORMAT:
            raise self._error("not an export file of celery_delayq")
        if first.get("version") != VERSION:
            raise self._error(f"unknown version {first.get('version')!r}: only version {VERSION} can be imported")
        self.tasks = first["tasks"] if type(first.get("tasks")) is int else 0
        count = 0
        while (line := self._next()) is not None:
            if "end" in line:
                break
            yield self._task(line)
            count += 1
        if line is None:
            raise self._error("the end line is missing: the file was cut off")
        if line["end"] != count:
            raise self._error(f"expected {line['end']!r} tasks, found {count}")
        if self._next() is not None:
            raise self._error("unexpected line after the end line")

    def _next(self) -> dict[str, Any] | None:
        try:
            text = next(self._lines, None)
            if text is None:
                return None
            self._number += 1
            line = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise self._error(f"not valid JSON, or cut off: {exc}") from exc
        except (EOFError, zlib.error) as exc:  # the file is compressed
            raise self._error(f"cut off or damaged: {exc}") from exc
        if not isinstance(line, dict):
            raise self._error("not a JSON object")
        return line

    def _task(self, line: dict[str, Any]) -> _Line:
        try:
            queue, priority, due_ms = (line[name] for name in ("queue", "priority", "due_ms"))
            if not (isinstance(queue, str) and queue and type(priority) is type(due_ms) is int):
                raise ValueError("queue, priority or due_ms is invalid")
            queue.encode()
            least, most = (-(2**63), 2**63) if "entry_base64" in line else (0, 2**52)
            if not least <= due_ms < most:
                raise ValueError("due_ms is out of range")
            if "entry_base64" in line:
                entry = _bytes(line["entry_base64"])
                entry_id, _ = unpack(entry)
                if OfferId.is_one(entry_id):
                    raise ValueError("an entry of celery_delayq must have key and payload, not entry_base64")
                return _Line(queue, priority, due_ms, b"", entry)
            key = bytes.fromhex(line["key"])
            if len(key) != MESSAGE_KEY_SIZE:
                raise ValueError(f"key must be {MESSAGE_KEY_SIZE} bytes in hex")
            payload = line["payload"].encode() if "payload" in line else _bytes(line["payload_base64"])
            return _Line(queue, priority, due_ms, key, payload)
        except KeyError as exc:
            raise self._error(f"{exc} is missing") from exc
        except (ValueError, TypeError, AttributeError) as exc:
            raise self._error(str(exc)) from exc

    def _error(self, what: str) -> InvalidExport:
        return InvalidExport(f"{self._name}, line {max(self._number, 1)}: {what}")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)

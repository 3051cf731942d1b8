"""Export, import and release: the ways of delayed tasks out of a server and back, as a whole.

A file of exported tasks is JSON lines in UTF-8:

    {"format": "celery_delayq", "version": 1, "exported_at": ..., "tasks": ...}     how many there were at first
    {"queue": ..., "priority": ..., "due_ms": ..., "id": ..., "key": ..., "payload": ...}       one for each task
    {"end": ...}                                                                    how many there are

`key` is the message key in hex, by which a task is found, since not every message has an `id`. A payload that is not
UTF-8 is in `payload_base64` instead; what another program offered has `entry_base64` instead of key and payload, its
whole entry. The last line tells a whole file from one that was cut off.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from celery_delayq import scripts
from celery_delayq.codec import MESSAGE_KEY_SIZE, OfferId, unpack
from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.errors import InvalidExport
from celery_delayq.inspector import message as messages
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.pages import Criteria, OnProgress, walk
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.scripts import Call
from celery_delayq.times import to_datetime

FORMAT, VERSION = "celery_delayq", 1

#: A path, or a file that is open, for text or bytes.
File = str | os.PathLike[str] | IO[Any]

#: Lines that are sent at once, and their size in bytes.
_LINES, _BYTES = 200, 1_048_576


@dataclass(frozen=True)
class Imported:
    """What an import did.

    Attributes:
        stored: tasks that wait now.
        waiting: tasks that were waiting already: same id, due time and content.
    """

    stored: int
    waiting: int


@dataclass(frozen=True)
class Released:
    """What a release did.

    Attributes:
        released: messages that were moved to their broker lists.
        left: messages that were seen and still wait: they are no tasks that could carry an eta, or they were offered
            since it began, by workers that took back what had been released.
    """

    released: int
    left: int


def export(lists: BrokerLists, file: File, on_progress: OnProgress | None = None) -> int:
    """Write everything that waits; returns how many tasks.

    A path gets its file as the last step, by renaming: it is whole, or the one that was there before. A process that is
    killed leaves an unfinished one beside it, with a random ending. Only its owner may read the file, since it holds
    arguments of tasks.

    What waits all the time is in the file. What is moved, offered or rescheduled meanwhile may be in it or not.

    Raises:
        OSError: the file cannot be written.
    """
    written = 0
    with _writing(file) as write:
        size = sum(lists.delayed_queue(found).size() for found in lists.waiting())
        exported_at = to_datetime(lists.now_ms()).isoformat()
        write({"format": FORMAT, "version": VERSION, "exported_at": exported_at, "tasks": size})
        for broker_list, tasks in walk(lists, Criteria(), on_progress):
            for task in tasks:
                write(_line(broker_list, task))
            written += len(tasks)
        write({"end": written})
    return written


def import_(lists: BrokerLists, file: File, on_progress: OnProgress | None = None) -> Imported:
    """Let what was exported wait again, where it does not wait already. Atomic for each task.

    It may be repeated, also after it was interrupted or failed, and several may run at once: a task that waits with the
    same id, due time and content is not stored a second time. A task that has run or was rescheduled since the export
    does not wait so, and is stored.

    Raises:
        InvalidExport: a line is not what it must be, or the last one is missing. What comes before was imported.
        OSError: the file cannot be read.
    """
    answers: list[bool] = []
    registered: set[str] = set()
    batch: list[Call] = []
    size = 0

    def send() -> None:
        nonlocal size
        if batch:
            answers.extend(map(bool, scripts.load("restore").run_all(lists.client, batch)))
            batch.clear()
            size = 0
            if on_progress is not None:
                on_progress(len(answers), max(reader.tasks, len(answers)))

    with _reading(file) as stream:
        reader = _Reader(stream, getattr(stream, "name", "the file"))
        try:
            for line in reader:
                queue: DelayedQueue = lists.channel.delayed_queue(lists.channel.broker_list(line.queue, line.priority))
                queue.register(again=queue.name not in registered)
                registered.add(queue.name)
                batch.append(
                    scripts.restore_command(
                        queue.keys,
                        due_ms=line.due_ms,
                        message_key=line.key,
                        payload=line.payload,
                        mirrored=queue.mirror_list,
                    )
                )
                size += len(line.payload)
                if len(batch) == _LINES or size >= _BYTES:
                    send()
        except (InvalidExport, OSError):
            send()
            raise
        send()
    return Imported(sum(answers), len(answers) - sum(answers))


def release(lists: BrokerLists, queue: str | None = None, on_progress: OnProgress | None = None) -> Released:
    """Move everything that waits to the broker lists, each with its eta, for which workers wait by themselves then.

    In due order within each list, a hundred in one atomic script. What is no task message has no eta that a worker
    could wait for, and stays. So does what was offered since this began: workers with this package offer what was
    released, as they fetch it, and this would have no end.
    """
    began_us = lists.now_us()
    released = left = 0
    for broker_list, tasks in walk(lists, Criteria(queue=queue), on_progress):
        movable = [task for task in tasks if task.is_task and not _offered_since(began_us, task)]
        left += len(tasks) - len(movable)
        pairs = [(task.entry, messages.with_eta(task.entry.payload, _eta(task), None)) for task in movable]
        released += sum(lists.delayed_queue(broker_list).release(pairs))
    return Released(released, left)


def _offered_since(when_us: int, task: ScheduledTask) -> bool:
    offer = OfferId.from_bytes(task.entry.id)
    return offer is not None and offer.offered_us > when_us


def _eta(task: ScheduledTask) -> str:
    """Return the eta of a task as it has it; its due time if that is another one."""
    eta = task.headers.get("eta")
    return eta if isinstance(eta, str) and task.eta == task.due else task.due.isoformat()


# -- writing


@contextmanager
def _writing(file: File) -> Iterator[Any]:
    if not isinstance(file, (str, os.PathLike)):
        if not hasattr(file, "write"):
            raise TypeError(f"a path or an open file is wanted, not {file!r}")
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
        "due_ms": entry.due_ms,
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
    """A task, or an entry of another program, which has no key."""

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
        raise TypeError(f"a path or an open file is wanted, not {file!r}")


class _Reader:
    """Yields the tasks of a file, and sees that it is whole."""

    def __init__(self, lines: Iterable[Any], name: str) -> None:
        self.tasks = 0
        self._lines = iter(lines)
        self._name = name
        self._number = 0

    def __iter__(self) -> Iterator[_Line]:
        first = self._next()
        if first is None or first.get("format") != FORMAT:
            raise self._error("the file was not written by an export of celery_delayq")
        if first.get("version") != VERSION:
            raise self._error(f"version {first.get('version')!r} is not known here, only {VERSION}")
        self.tasks = first["tasks"] if type(first.get("tasks")) is int else 0
        count = 0
        while (line := self._next()) is not None:
            if "end" in line:
                break
            yield self._task(line)
            count += 1
        if line is None:
            raise self._error("the file ends here without its last line: it was cut off")
        if line["end"] != count:
            raise self._error(f"there should be {line['end']!r} tasks, and were {count}")
        if self._next() is not None:
            raise self._error("nothing should come after the last line")

    def _next(self) -> dict[str, Any] | None:
        try:
            text = next(self._lines, None)
            if text is None:
                return None
            self._number += 1
            line = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise self._error(f"no JSON, or cut off: {exc}") from exc
        except (EOFError, zlib.error) as exc:  # of a compressed file
            raise self._error(f"cut off, or damaged: {exc}") from exc
        if not isinstance(line, dict):
            raise self._error("not a JSON object")
        return line

    def _task(self, line: dict[str, Any]) -> _Line:
        try:
            queue, priority, due_ms = (line[name] for name in ("queue", "priority", "due_ms"))
            if not (isinstance(queue, str) and queue and type(priority) is type(due_ms) is int):
                raise ValueError("queue, priority or due_ms is wrong")
            queue.encode()
            least, most = (-(2**63), 2**63) if "entry_base64" in line else (0, 2**52)
            if not least <= due_ms < most:
                raise ValueError("due_ms is out of range")
            if "entry_base64" in line:
                entry = _bytes(line["entry_base64"])
                entry_id, _ = unpack(entry)
                if OfferId.from_bytes(entry_id) is not None:
                    raise ValueError("an entry with a task id must have its key and payload")
                return _Line(queue, priority, due_ms, b"", entry)
            key = bytes.fromhex(line["key"])
            if len(key) != MESSAGE_KEY_SIZE:
                raise ValueError("key is wrong")
            payload = line["payload"].encode() if "payload" in line else _bytes(line["payload_base64"])
            return _Line(queue, priority, due_ms, key, payload)
        except KeyError as exc:
            raise self._error(f"{exc} is missing") from exc
        except (ValueError, TypeError, AttributeError) as exc:
            raise self._error(str(exc)) from exc

    def _error(self, what: str) -> InvalidExport:
        return InvalidExport(f"{self._name}, line {self._number}: {what}")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)

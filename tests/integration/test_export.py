"""`delayq.export` and `delayq.import_`: everything that waits, byte for byte, once; bad files lose nothing."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import stat
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue, InvalidExport
from celery_delayq.inspector.backup import Imported
from celery_delayq.queue import codec
from examples.private_redis import PrivateRedis
from tests.integration.publishing import ready
from tests.properties import on_a_server
from tests.state import FAR, nothing_changes, offer, out_of_memory, state
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster

LATER = datetime(2040, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def full(app: Celery, waiting: DelayedQueue) -> DelayedQueue:
    """Tasks of several queues and priorities, and what others offered."""
    for number in range(30):
        where = {"queue": ("celery", "other")[number % 2], "priority": (0, 3, 9)[number % 3]}
        app.tasks["note"].apply_async((f"é{number}",), eta=LATER, task_id=f"id{number % 25}", **where)
    app.tasks["note"].apply_async(({1, 2},), eta=LATER, serializer="pickle")
    waiting.register(again=True)
    offer(waiting, "bytes", payload=b"\xff\x00")
    waiting.client.zadd(waiting.keys.timeout_set, {codec.pack(bytes(8), b"java"): FAR, codec.pack(b"", b""): FAR})
    return waiting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def content(client: redis.Redis) -> dict[str, list[tuple[int, bytes]]]:
    """Due times and payloads of all that waits, in order, by broker list."""
    found = {}
    for name in set(client.zrange("delayq:queues", 0, -1)):
        queue = DelayedQueue(client, name.decode())
        found[queue.name] = [(entry.score, entry.payload) for page in queue.pages() for entry in page]
    return {name: entries for name, entries in found.items() if entries}


def empty(client: redis.Redis) -> None:
    """Delete what waits."""
    client.delete("-", *(key for key in client.scan_iter() if key != b"delayq:queues"))


class TestThereAndBack:
    def test_every_byte_and_the_order(self, app: Celery, full: DelayedQueue, path: Path) -> None:
        before = content(full.client)
        with nothing_changes(full.client):
            assert app.delayq.export(path) == 34
        empty(full.client)
        assert app.delayq.import_(path) == Imported(34, 0)
        assert content(full.client) == before
        ids = {f"id{number}" for number in range(25)} | {"bytes"}
        assert set(app.delayq.cancel(ids).values()) == {True}

    def test_of_some_queues(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        ids = [app.tasks["note"].apply_async(eta=LATER, queue=queue).id for queue in ("one", "two", "three")]
        assert app.delayq.export(path, queues=["one", "two"]) == 2
        assert {line["id"] for line in map(json.loads, path.read_text().splitlines()[1:-1])} == set(ids[:2])
        with pytest.raises(TypeError, match="queues must be several names, not 'one'"):
            app.delayq.export(path, queues="one")

    def test_again_changes_nothing(self, app: Celery, full: DelayedQueue, path: Path) -> None:
        app.delayq.export(path)
        empty(full.client)
        app.delayq.import_(path)
        with nothing_changes(full.client):
            assert app.delayq.import_(path) == Imported(0, 34)

    def test_where_all_of_it_still_waits(self, app: Celery, full: DelayedQueue, path: Path) -> None:
        app.delayq.export(path)
        with nothing_changes(full.client):
            assert app.delayq.import_(path) == Imported(0, 34)

    def test_redissons_entries_are_its_own_again(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        waiting.register(again=True)
        old = bytes(8) + (3).to_bytes(8, "little") + b"old"
        for entry in (codec.pack(bytes(range(8)), b"java"), old):
            waiting.client.zadd(waiting.keys.timeout_set, {entry: -5 if entry is old else 2**60})
            waiting.client.rpush(waiting.keys.delay_list, entry)
        before = state(waiting.client)
        app.delayq.export(path)
        empty(waiting.client)
        assert app.delayq.import_(path) == Imported(2, 0)
        after = state(waiting.client)
        assert sorted(after.pop(waiting.keys.delay_list)) == sorted(before.pop(waiting.keys.delay_list))
        assert after == before

    def test_to_another_server_with_another_prefix(
        self, app: Celery, full: DelayedQueue, path: Path, ledger_url: str
    ) -> None:
        app.delayq.export(path)
        options = {"global_keyprefix": "shop:", "mirror_list": True}
        with (
            PrivateRedis() as server,
            publisher(f"delayq://127.0.0.1:{server.port}/0", ledger_url, broker_transport_options=options) as other,
            server.client() as client,
        ):
            assert other.delayq.import_(path).stored == 34
            lists = {
                f"shop:{name}{step}".encode() for name in ("celery", "other") for step in ("", "\x06\x163", "\x06\x169")
            }
            assert set(client.zrange("shop:delayq:queues", 0, -1)) == lists
            (task,) = (task for task in other.delayq.iter_scheduled("other") if task.id == "id1")
            assert (task.queue, task.priority, task.due) == ("other", 3, LATER)
            queue = DelayedQueue(client, task.broker_list)
            assert client.llen(queue.keys.delay_list) == queue.size()
            assert other.delayq.cancel("id1") is True

    def test_two_imports_at_once_store_each_task_once(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        for number in range(1_000):
            app.tasks["note"].apply_async((number,), eta=LATER)
        app.delayq.export(path)
        empty(waiting.client)
        with ThreadPoolExecutor(2) as threads:
            done = list(threads.map(app.delayq.import_, [path, path]))
        assert sum(each.stored for each in done) == sum(each.waiting for each in done) == 1_000
        assert waiting.size() == 1_000

    def test_while_tasks_are_transferred_each_is_in_the_file_or_delivered(
        self, app: Celery, waiting: DelayedQueue
    ) -> None:
        ids = {app.tasks["note"].apply_async((number,), eta=LATER).id for number in range(500)}
        file = io.BytesIO()
        assert app.delayq.export(file, on_progress=lambda *_: waiting.transfer(170, lead=LATER.timestamp())) < 500
        exported = [json.loads(line).get("id") for line in file.getvalue().splitlines()][1:-1]
        delivered = {message["headers"]["id"] for message in ready(waiting.client)}
        assert set(exported) | delivered == ids
        assert len(exported) == len(set(exported))

    def test_what_was_rescheduled_since_is_another_task(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        app.tasks["note"].apply_async(eta=LATER, task_id="it")
        app.delayq.export(path)
        app.delayq.reschedule("it", countdown=60)
        assert app.delayq.import_(path) == Imported(1, 0)
        assert waiting.size() == 2

    def test_loops_learn_of_queues_on_a_server_that_lost_its_data(
        self, app: Celery, full: DelayedQueue, path: Path
    ) -> None:
        names = set(full.client.zrange("delayq:queues", 0, -1))
        app.delayq.export(path)
        full.client.flushall()
        app.delayq.import_(path)
        left = set(full.client.zrange("delayq:queues", 0, -1))
        assert left == {name.encode() for name in content(full.client)} <= names

    def test_of_nothing(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        assert app.delayq.export(path) == 0
        assert len(path.read_text().splitlines()) == 2
        assert app.delayq.import_(path) == Imported(0, 0)


class TestFiles:
    def test_a_line_is_this(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        """Golden: files are kept for long."""
        app.tasks["note"].apply_async(eta=LATER, task_id="it", priority=3)
        waiting.register(again=True)
        offer(waiting, "bytes", FAR, b"\xff")
        app.delayq.export(path)
        first, bytes_, task, last = map(json.loads, path.read_text().splitlines())
        assert {**first, "exported_at": ""} == {"format": "celery_delayq", "version": 1, "exported_at": "", "tasks": 2}
        assert datetime.fromisoformat(first["exported_at"]).tzinfo
        where = {"queue": "celery", "priority": 0, "due_ms": FAR, "id": None}
        assert bytes_ == {**where, "key": codec.message_key("bytes").hex(), "payload_base64": "/w=="}
        assert json.loads(task.pop("payload"))["headers"]["id"] == "it"
        where = {"queue": "celery", "priority": 3, "due_ms": round(LATER.timestamp() * 1000), "id": "it"}
        assert task == {**where, "key": codec.message_key("it").hex()}
        assert last == {"end": 2}

    @pytest.mark.parametrize("kind", ["text", "bytes", "gzip", "path", "pipe"])
    def test_of_every_kind(self, app: Celery, full: DelayedQueue, path: Path, kind: str) -> None:
        if kind == "text":
            with path.open("w", encoding="utf-8") as file:
                app.delayq.export(file)
            with path.open(encoding="utf-8") as file:
                assert app.delayq.import_(file).waiting == 34
        elif kind in ("bytes", "gzip"):
            opened: Callable[..., Any] = open if kind == "bytes" else gzip.open
            with opened(path, "wb") as stream:
                app.delayq.export(stream)
            with opened(path, "rb") as stream:
                assert app.delayq.import_(stream).waiting == 34
        elif kind == "path":
            app.delayq.export(str(path))
            assert app.delayq.import_(str(path)).waiting == 34
        else:
            os.mkfifo(path)
            with ThreadPoolExecutor(1) as threads:
                exporting = threads.submit(app.delayq.export, path)
                imported = app.delayq.import_(path)
                assert exporting.result() == 34
            assert imported.waiting == 34
            assert stat.S_ISFIFO(path.stat().st_mode)

    def test_memory_is_a_file(self, app: Celery, full: DelayedQueue) -> None:
        for file in (io.StringIO(), io.BytesIO()):
            app.delayq.export(file)
            file.seek(0)
            assert app.delayq.import_(file).waiting == 34

    def test_only_its_owner_reads_it(self, app: Celery, full: DelayedQueue, path: Path) -> None:
        app.delayq.export(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_tells_how_far_it_is(self, app: Celery, full: DelayedQueue, path: Path) -> None:
        told: list[tuple[int, int]] = []
        app.delayq.export(path, on_progress=lambda *now: told.append(now))
        assert told[-1] == (34, 34)
        told.clear()
        app.delayq.import_(path, on_progress=lambda *now: told.append(now))
        assert told[-1] == (34, 34)


class TestInterrupted:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_an_export_leaves_the_file_that_was_there(
        self, app: Celery, full: DelayedQueue, path: Path, error: type[BaseException]
    ) -> None:
        path.write_text("before")

        def interrupt(done: int, total: int) -> None:
            raise error

        with pytest.raises(error):
            app.delayq.export(path, on_progress=interrupt)
        assert path.read_text() == "before"
        assert list(path.parent.iterdir()) == [path]

    def test_an_import_can_be_repeated(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        for number in range(500):
            app.tasks["note"].apply_async((number,), eta=LATER)
        before = content(waiting.client)
        app.delayq.export(path)
        empty(waiting.client)

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            app.delayq.import_(path, on_progress=interrupt)
        assert waiting.size() == 200
        assert app.delayq.import_(path) == Imported(300, 200)
        assert content(waiting.client) == before

    def test_a_server_without_memory(self, app: Celery, waiting: DelayedQueue, path: Path) -> None:
        app.tasks["note"].apply_async(eta=LATER)
        app.delayq.export(path)
        empty(waiting.client)
        with out_of_memory(waiting.client), pytest.raises(OperationalError, match="cannot import"):
            app.delayq.import_(path)
        assert app.delayq.import_(path).stored == 1

    @pytest.mark.parametrize("name", ["missing/tasks.jsonl", ""])
    def test_a_path_that_cannot_be_written_or_read(
        self, app: Celery, full: DelayedQueue, tmp_path: Path, name: str
    ) -> None:
        for call in (app.delayq.export, app.delayq.import_):
            with pytest.raises(OSError, match=r"missing|directory|Is a"):
                call(tmp_path / name)


HEAD = {"format": "celery_delayq", "version": 1, "tasks": 2}
GOOD = {"queue": "celery", "priority": 0, "due_ms": FAR, "key": "00" * 16, "payload": "x"}
#: Entries, as another program and as this package would store them.
FOREIGN, OURS = (
    base64.b64encode(struct.pack("<B", len(entry_id)) + entry_id + struct.pack("<Q", 1) + b"x").decode()
    for entry_id in (b"redisson", struct.pack(">Q", 1 << 8 | 0xD0) + bytes(16))
)


class TestBadFiles:
    @pytest.mark.parametrize(
        ("lines", "match"),
        [
            ([], "line 1: not an export file"),
            ([b"not JSON"], "line 1: not valid JSON, or cut off"),
            ([[1]], "line 1: not a JSON object"),
            ([{"format": "other"}], "line 1: not an export file of celery_delayq"),
            ([{**HEAD, "version": 2}], "line 1: unknown version 2: only version 1 can be imported"),
            ([HEAD], "line 1: the end line is missing: the file was cut off"),
        ],
    )
    def test_that_say_nothing(self, app: Celery, waiting: DelayedQueue, lines: list[Any], match: str) -> None:
        with nothing_changes(waiting.client), pytest.raises(InvalidExport, match=match) as caught:
            app.delayq.import_(self.file(*lines))
        assert caught.value.imported == 0

    @pytest.mark.parametrize(
        ("lines", "match"),
        [
            ([], "line 3: the end line is missing"),
            ([b'{"queue": "cel'], "line 4: not valid JSON, or cut off"),
            ([b"\xff\xfe garbage"], "line 4: not valid JSON, or cut off"),
            ([b"[" * 100_000], "line 4: not valid JSON, or cut off"),
            ([5], "line 4: not a JSON object"),
            ([{}], "line 4: 'queue' is missing"),
            ([{**GOOD, "queue": 5}], "line 4: queue, priority or due_ms is invalid"),
            ([{**GOOD, "queue": ""}], "line 4: queue, priority or due_ms is invalid"),
            ([{**GOOD, "priority": True}], "line 4: queue, priority or due_ms is invalid"),
            ([{**GOOD, "due_ms": 1.5}], "line 4: queue, priority or due_ms is invalid"),
            ([{**GOOD, "queue": "\ud800"}], "line 4: "),
            ([{**GOOD, "due_ms": -1}], "line 4: due_ms is out of range"),
            ([{**GOOD, "due_ms": 2**60}], "line 4: due_ms is out of range"),
            ([{**GOOD, "due_ms": 10**400, "entry_base64": FOREIGN}], "line 4: due_ms is out of range"),
            ([{**GOOD, "entry_base64": OURS}], "line 4: an entry of celery_delayq must have key and payload"),
            ([{**GOOD, "key": "zz"}], "line 4: "),
            ([{**GOOD, "key": "00"}], "line 4: key must be 16 bytes in hex"),
            ([{**GOOD, "key": None}], "line 4: "),
            ([{**GOOD, "payload": 5}], "line 4: "),
            ([{k: v for k, v in GOOD.items() if k != "payload"}], "line 4: 'payload_base64' is missing"),
            ([{**{k: v for k, v in GOOD.items() if k != "payload"}, "payload_base64": "?"}], "line 4: "),
            ([{**GOOD, "entry_base64": ""}], "line 4: not a valid entry of a delayed queue"),
            ([{**GOOD, "entry_base64": "AAAA"}], "line 4: not a valid entry of a delayed queue"),
            ([{**GOOD, "entry_base64": 5}], "line 4: "),
            ([{"end": 3}], "line 4: expected 3 tasks, found 2"),
            ([{"end": 2}, GOOD], "line 5: unexpected line after the end line"),
        ],
    )
    def test_what_comes_before_is_imported(
        self, app: Celery, waiting: DelayedQueue, lines: list[Any], match: str
    ) -> None:
        file = self.file(HEAD, GOOD, {**GOOD, "key": "11" * 16}, *lines)
        with pytest.raises(InvalidExport, match=match) as caught:
            app.delayq.import_(file)
        assert waiting.size() == caught.value.imported == 2
        file.seek(0)
        with nothing_changes(waiting.client), pytest.raises(InvalidExport, match=match):
            app.delayq.import_(file)

    def test_a_compressed_file_that_is_cut_off(self, app: Celery, waiting: DelayedQueue) -> None:
        whole = gzip.compress(self.file(HEAD, GOOD, {**GOOD, "key": "11" * 16}, {"end": 2}).read())
        with pytest.raises(InvalidExport, match="cut off or damaged"):
            app.delayq.import_(gzip.GzipFile(fileobj=io.BytesIO(whole[:-12])))

    @pytest.mark.parametrize("file", [5, b"tasks.jsonl", None])
    def test_what_is_no_file(self, app: Celery, file: Any) -> None:
        for call in (app.delayq.export, app.delayq.import_):
            with pytest.raises(TypeError, match="must be a path or an open file"):
                call(file)

    def test_the_error_names_the_file(self, app: Celery, path: Path) -> None:
        path.write_text("garbage")
        with pytest.raises(InvalidExport, match=f"{path}, line 1: "):
            app.delayq.import_(path)

    def test_text_that_is_not_utf8(self, app: Celery, path: Path) -> None:
        path.write_bytes(json.dumps(HEAD).encode() + b"\n\xff\xfe\n")
        with path.open(encoding="utf-8") as file, pytest.raises(InvalidExport, match="not valid JSON, or cut off"):
            app.delayq.import_(file)

    @on_a_server(max_examples=60)
    @given(part=st.integers(0, 10**6 - 1))
    def test_cut_off_anywhere(self, app: Celery, full: DelayedQueue, part: int) -> None:
        """Whatever is missing, it is noticed, and the lines before the cut are imported."""
        file = io.BytesIO()
        app.delayq.export(file)
        whole = file.getvalue()
        cut = whole[: (len(whole) - 1) * part // 10**6]
        empty(full.client)
        with pytest.raises(InvalidExport):
            app.delayq.import_(io.BytesIO(cut))
        lines = cut.count(b"\n") - 1
        assert sum(map(len, content(full.client).values())) in (max(lines, 0), lines + 1)
        app.delayq.import_(io.BytesIO(whole))
        assert sum(map(len, content(full.client).values())) == 34

    def file(self, *lines: Any) -> io.BytesIO:
        texts = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        return io.BytesIO(b"".join(text + b"\n" for text in texts))

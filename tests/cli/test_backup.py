"""`celery delayq export`, `import` and `release`."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from tests.cli.running import Command, failed, is_wrong_use
from tests.integration.publishing import publish, ready
from tests.state import nothing_changes, offer

pytestmark = pytest.mark.on_cluster


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


class TestExportAndImport:
    def test_there_and_back(self, app: Celery, command: Command, path: Path) -> None:
        ids = [publish(app, seconds=number) for number in range(3)]
        assert command("export", path).stdout == f"3 tasks exported to {path}.\n"
        app.delayq.cancel(ids[:2])
        assert command("import", path).stdout == "2 tasks stored, 1 already waiting.\n"
        assert [task.id for task in app.delayq.scheduled()] == ids
        assert command("import", path, "--json").json() == [{"stored": 0, "waiting": 3}]

    def test_through_a_pipe(self, app: Celery, command: Command) -> None:
        task_id = publish(app, args=("é",))
        exported = command("export", "-")
        assert (exported.code, exported.stderr) == (0, "1 task exported to -.\n")
        app.delayq.cancel(task_id)
        assert command("import", "-", input=exported.stdout.encode()).stdout.startswith("1 task stored")
        assert app.delayq.get(task_id).args_text == "('é',)"
        is_wrong_use(command("export", "-", "--json"), "--json")

    def test_of_some_queues(self, app: Celery, command: Command, path: Path) -> None:
        ids = {queue: publish(app, queue=queue) for queue in ("one", "two", "three")}
        assert command("export", path, "-Q", "one, two").stdout == f"2 tasks exported to {path}.\n"
        app.delayq.cancel(list(ids.values()))
        assert command("import", path).stdout.startswith("2 tasks stored")
        assert {queue for queue, task in app.delayq.get(ids.values()).items() if task} == {ids["one"], ids["two"]}
        failed(command("export", path, "--yes", "-Q", "one,tow"), "unknown queue 'tow': did you mean 'two'")
        is_wrong_use(command("export", path, "--yes", "-Q", " ,"), "give -Q at least one queue")

    def test_a_file_is_replaced_only_with_yes(self, app: Celery, command: Command, path: Path) -> None:
        path.write_text("precious")
        is_wrong_use(command("export", path), f"{path} exists. Replace it?", "pass --yes")
        assert path.read_text() == "precious"
        assert command("export", path, "--yes", "--json").json() == [{"exported": 0}]
        assert '"celery_delayq"' in path.read_text()

    def test_a_file_that_was_cut_off(self, app: Celery, command: Command, path: Path) -> None:
        task_id = publish(app)
        command("export", path)
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
        app.delayq.cancel(task_id)
        failed(command("import", path), f"{path}, line 2", "was cut off. The lines before it were imported")
        assert app.delayq.get(task_id) is not None

    def test_a_file_of_something_else(self, command: Command, path: Path) -> None:
        path.write_text("{}\n")
        failed(command("import", path), "line 1", "not an export file of celery_delayq")
        done = command("import", "/dev/null")
        failed(done, "/dev/null, line 1: not an export file of celery_delayq")
        assert "The lines before it" not in done.stderr

    def test_files_that_cannot_be_opened(self, command: Command, path: Path) -> None:
        failed(command("import", path), f"cannot read {path}: No such file or directory")
        failed(command("export", path / "tasks"), f"cannot write {path}/tasks: No such file or directory")


class TestRelease:
    def test_says_what_to_do_first_and_wants_yes(self, app: Celery, waiting: DelayedQueue, command: Command) -> None:
        publish(app)
        with nothing_changes(waiting.client):
            done = command("release")
        is_wrong_use(done, "Stop all workers first", "Release the waiting tasks?", "pass --yes")

    def test_moves_what_waits(self, app: Celery, waiting: DelayedQueue, command: Command) -> None:
        task_id, kept = publish(app), publish(app, queue="other")
        done = command("release", "--queue", "celery", "--yes")
        assert (done.code, done.stdout) == (0, "1 task released.\n")
        assert [message["headers"]["id"] for message in ready(waiting.client)] == [task_id]
        assert app.delayq.get(kept) is not None

    def test_tells_what_stays(self, waiting: DelayedQueue, command: Command) -> None:
        offer(waiting, "bytes", payload=b"\xff")
        done = command("release", "--yes", "--json")
        assert done.json() == [{"released": 0, "left": 1}]
        assert "1 message left waiting" in done.stderr

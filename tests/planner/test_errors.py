"""What is wrong with one entry stops no other: it is shown, and goes on by itself once it can."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery.schedules import schedule

from celery_delayq.schedule.records import Record, State
from tests.planner.conftest import Stage, definition, run, run_until, started
from tests.state import FAR, out_of_memory

pytestmark = pytest.mark.on_cluster


class Raising(schedule):
    """A class of the user's with a mistake."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        raise ValueError("a mistake")


class TestErrors:
    def test_one_entry_that_cannot_be_built_does_not_stop_the_others(self, stage: Stage) -> None:
        started(stage, {"bad": {"schedule": 60, "task": "broken"}, "good": 60})
        assert stage.waiting() == ["good []"]
        assert stage.store.error("bad") == "RuntimeError: it cannot be built"

    def test_a_schedule_that_raises_when_it_is_resumed(self, stage: Stage) -> None:
        bad = {"schedule": Raising(60)}
        fingerprint = definition("bad", bad, "{}").fingerprint
        stage.store.write_record("bad", b"", Record(fingerprint, 0, None, app="shop", queue="celery"))
        stage.client.hset(stage.queue().keys.schedule, "bad", State(fingerprint, "another", None).dump())
        stage.queue().register()
        started(stage, {"bad": bad, "good": 60})
        assert stage.waiting() == ["good []"]
        assert stage.store.error("bad") == "ValueError: a mistake"

    def test_an_entry_is_tried_again_soon(self, stage: Stage) -> None:
        planner = started(stage)
        stage.add("a", {"schedule": 60, "task": "u"})
        stage.client.set(stage.queue().keys.index, "no HASH")
        planner.on_changes([(1, "a")])
        run(planner)
        assert "WRONGTYPE" in (stage.store.error("a") or "")
        stage.client.delete(stage.queue().keys.index)
        run_until(lambda: stage.waiting() == ["a []"], "it is planned", planner)

    def test_each_process_logs_an_error_once(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        """Also an error that an earlier process has stored: whoever starts a worker should see it."""

        def logged() -> int:
            return sum("Cannot plan periodic task 'bad'" in message for message in caplog.messages)

        bad = {"bad": {"schedule": 60, "task": "broken"}}
        for count in (1, 2):
            planner = started(stage, bad)
            assert logged() == count
            planner.read()
            run(planner)
            assert logged() == count
        started(stage, bad, is_back=True)
        assert logged() == 2

    def test_an_error_is_forgotten_once_it_can(self, stage: Stage) -> None:
        started(stage, {"bad": {"schedule": 60, "task": "broken"}})
        started(stage, {"bad": 60})
        assert stage.store.errors() == {}

    def test_a_record_that_cannot_be_read_is_shown(self, stage: Stage) -> None:
        stage.client.hset(stage.store.keys.definitions, mapping={"junk": "{", "odd": '{"a": 1}'})
        started(stage, {"good": 60})
        assert stage.waiting() == ["good []"]
        assert stage.store.errors().keys() == {"junk", "odd"}

    def test_a_state_that_cannot_be_read_is_written_anew(self, stage: Stage) -> None:
        started(stage, {"a": 60})
        stage.queue().cancel((stage.state("a") or 0).task_id)  # type: ignore[union-attr]
        stage.client.hset(stage.queue().keys.schedule, "a", "junk")
        started(stage, {"a": 60})
        assert stage.waiting() == ["a []"]


class TestWhatOthersWrote:
    """Junk in Redis stops nobody."""

    def test_names_that_are_no_text(self, stage: Stage) -> None:
        stage.client.hset(stage.store.keys.definitions, b"\xff", b"{}")
        started(stage, {"good": 60})
        assert stage.waiting() == ["good []"]

    def test_fields_of_wrong_types(self, stage: Stage) -> None:
        record = '{"fingerprint": 1, "since_ms": "x", "definition": []}'
        stage.client.hset(stage.store.keys.definitions, "odd", record)
        started(stage, {"good": 60})
        stage.queue().cancel((stage.state("good") or 0).task_id)  # type: ignore[union-attr]
        stage.client.hset(stage.queue().keys.schedule, "good", '[1, 2, "x"]')
        started(stage, {"good": 60})
        assert stage.waiting() == ["good []"]
        assert "wrong type" in (stage.store.error("odd") or "")

    def test_a_queue_that_the_server_refuses(self, stage: Stage) -> None:
        stage.client.set(stage.queue("odd").keys.schedule, "no HASH")
        stage.client.zadd("delayq:queues", {"odd": FAR})
        started(stage, {"good": 60, "bad": {"schedule": 60, "task": "u"}}, queues={"u": "odd"})
        assert stage.waiting() == ["good []"]
        assert "WRONGTYPE" in (stage.store.error("bad") or "")

    def test_a_registry_of_another_type(self, stage: Stage) -> None:
        """Then records say in which queues there may be states."""
        stage.client.set("delayq:queues", "no SET")
        started(stage, {"good": 60, "moves": {"schedule": 60, "task": "u"}}, queues={"u": "before"})
        started(stage, {"good": 60, "moves": {"schedule": 60, "task": "u"}}, queues={"u": "after"})
        assert stage.waiting() == ["good []"]
        assert [stage.waiting(name) for name in ("before", "after")] == [[], ["moves []"]]

    def test_a_full_server(self, stage: Stage) -> None:
        planner = stage.planner({"a": 60})
        planner.read()
        with out_of_memory(stage.client):
            run(planner)
        assert stage.waiting() == []
        started(stage, {"a": 60})
        assert stage.waiting() == ["a []"]

    def test_an_error_that_cannot_be_stored_is_stored_later(self, stage: Stage) -> None:
        planner = stage.planner({"a": {"schedule": 60, "task": "broken"}})
        planner.read()
        with out_of_memory(stage.client):
            run(planner)
            assert stage.store.errors() == {}
        run_until(lambda: stage.store.error("a") == "RuntimeError: it cannot be built", "it is tried again", planner)

    @pytest.mark.parametrize(
        "field",
        [{"earlier": 5}, {"queue": {}}, {"definition": {"options": 5}}, {"definition": {"schedule": [1]}}],
        ids=str,
    )
    def test_a_record_of_the_wrong_shape(self, stage: Stage, field: dict[str, Any]) -> None:
        record = {"fingerprint": "f", "since_ms": 1, "definition": {}, **field}
        stage.client.hset(stage.store.keys.definitions, "odd", json.dumps(record))
        started(stage, {"good": 60})
        assert stage.waiting() == ["good []"]
        assert stage.store.error("odd")

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_removed_entry_in_a_queue_that_the_server_refuses(self, stage: Stage, restarted: bool) -> None:
        stage.add("gone", {"schedule": 60, "task": "u"})
        planner = started(stage, {"good": 60}, queues={"u": "odd"})
        stage.store.write_record("gone", stage.store.record("gone"), None)
        stage.client.delete(stage.queue("odd").keys.index)
        stage.client.set(stage.queue("odd").keys.index, "no HASH")
        if restarted:
            planner = started(stage, {"good": 60, "fresh": 60})
        else:
            planner.on_changes([(10**6, "gone")])
            stage.add("fresh", 60)
            planner.on_changes([(10**6, "fresh")])
            run(planner)
        assert sorted(stage.waiting()) == ["fresh []", "good []"]

    def test_an_entry_whose_old_queue_the_server_refuses_moves_later(self, stage: Stage) -> None:
        """Not before, or its message there would run as well."""
        stage.add("a", 60)
        started(stage)
        stage.add("a", 60, queue="other", earlier=["celery"])
        stage.client.set(stage.queue().keys.delay_list, "no LIST")
        planner = started(stage, queues={"t": "other"})
        assert "WRONGTYPE" in (stage.store.error("a") or "")
        stage.client.delete(stage.queue().keys.delay_list)
        run_until(lambda: stage.waiting("other") == ["a []"], "it is planned", planner)
        assert stage.waiting() == []

    def test_errors_that_cannot_be_kept(self, stage: Stage) -> None:
        stage.client.set(stage.store.keys.errors, "no HASH")
        started(stage, {"good": 60, "bad": {"schedule": 60, "task": "broken"}})
        assert stage.waiting() == ["good []"]

"""`cancel` and `get` of the result of a chain or a chord: they find the task of it that waits."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from tests.integration.long_tasks import long_worker
from tests.ledger import Ledger
from tests.support import wait_until

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("long_tasks", "empty_broker")]

LATER = {"countdown": 600}


def note(app: Celery, value: object, **options: Any) -> Any:
    return app.tasks["note"].si(value).set(**options)


def test_a_chain_whose_first_task_waits(app: Celery) -> None:
    result = chain(note(app, 1, **LATER), note(app, 2), note(app, 3)).apply_async()
    assert app.delayq.get(result).id == result.parent.parent.id
    assert app.delayq.cancel(result) is True
    assert app.delayq.get(result) is None
    assert app.delayq.cancel(result) is False


def test_a_chain_whose_second_task_waits(app: Celery, broker_url: str, ledger: Ledger) -> None:
    with long_worker(broker=broker_url, ledger=ledger):
        result = chain(note(app, 1), note(app, 2, **LATER), note(app, 3)).apply_async()
        wait_until(lambda: app.delayq.get(result.parent) is not None, "the second waits")
        assert app.delayq.cancel(result) is True
        assert app.delayq.get(result.parent) is None


def test_a_chain_with_more_tasks_than_python_has_calls(app: Celery) -> None:
    last = first = note(app, 1, **LATER).apply_async()
    for number in range(2 * sys.getrecursionlimit()):
        last = app.AsyncResult(f"later-{number}", parent=last)
    assert app.delayq.get(last).id == first.id
    assert app.delayq.cancel(last) is True


def test_a_chord_whose_header_waits(app: Celery) -> None:
    body = note(app, "body")
    result = chord([note(app, 1, **LATER), chain(note(app, 2, **LATER), note(app, 3)), note(app, 4, **LATER)])(body)
    assert app.delayq.get(result).id == app.delayq.scheduled().tasks[0].id
    assert app.delayq.cancel(result) is True
    assert not app.delayq.scheduled().tasks
    assert app.delayq.cancel(result) is False


def test_a_group_and_several_chains(app: Celery) -> None:
    some = group(note(app, 1, **LATER), note(app, 2, **LATER)).apply_async()
    assert app.delayq.cancel(some) == {child.id: True for child in some.results}
    chains = [chain(note(app, 1, **LATER), note(app, 2)).apply_async() for _ in range(2)]
    assert app.delayq.cancel(chains) == {result.id: True for result in chains}


def test_a_chain_that_ends_in_a_group(app: Celery) -> None:
    result = chain(note(app, 1, **LATER), group(note(app, 2), note(app, 3))).apply_async()
    found = app.delayq.get(result)
    assert {name: task.id for name, task in found.items()} == {one.id: result.parent.id for one in result.results}
    assert app.delayq.cancel(result) == {child.id: True for child in result.results}
    assert not app.delayq.scheduled().tasks
    assert app.delayq.cancel(result) == {child.id: False for child in result.results}


def test_what_is_no_result_is_refused(app: Celery) -> None:
    for wrong in (app.tasks["note"], note(app, 1)):
        with pytest.raises(TypeError, match="by its id or its result"):
            app.delayq.cancel(wrong)


def test_a_chain_that_has_run(app: Celery, broker_url: str, ledger: Ledger) -> None:
    with long_worker(broker=broker_url, ledger=ledger):
        result = chain(note(app, 1), note(app, 2)).apply_async()
        assert result.get(timeout=20) == 2
        assert app.delayq.cancel(result) is False

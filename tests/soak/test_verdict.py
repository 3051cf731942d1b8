"""The judge itself: what it calls lost, cut off, twice, unexplained, early and late, and which tracebacks it minds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.ledger import Acceptance, Execution
from tests.soak.logs import strange_tracebacks
from tests.soak.publisher import Booking, Outcome
from tests.soak.verdict import Harm, Verdict, judge

#: A worker that is killed at 10, and one that lives.
VICTIM, SURVIVOR = 1, 2
HARM = Harm(frozenset({VICTIM}), begin_s=10.0, end_s=10.1, killed_s=10.0)

#: A worker that is suspended then.
SUSPENDED = 3
HARMS = [HARM, Harm(frozenset({SUSPENDED}), begin_s=10.0, end_s=10.1)]

INTERRUPTED = Execution("t", VICTIM, 9.9, None)
AGAIN = Execution("t", SURVIVOR, 12.0, 12.1)


def verdict_on(
    *executions: Execution,
    accepted: Sequence[Acceptance] = (),
    acks_late: bool = True,
    outcome: Outcome = "sure",
) -> Verdict:
    """The verdict on one task, which is due at 9."""
    return judge([Booking("t", 9.0, acks_late, outcome)], executions, accepted, HARMS)


def accepted(worker: int, at_s: float) -> Acceptance:
    """That a process of a worker accepted the task."""
    return Acceptance("t", worker, worker + 100, at_s)


def test_a_task_that_never_ran_is_lost() -> None:
    assert verdict_on().lost == {"t"}


def test_a_task_whose_publishing_failed_is_not_lost() -> None:
    assert verdict_on(outcome="in doubt") == Verdict(in_doubt={"t"})


def test_a_task_that_was_refused_must_not_run() -> None:
    assert verdict_on(outcome="refused") == Verdict(refused={"t"})
    assert verdict_on(AGAIN, outcome="refused").unexplained == {"t"}


def test_a_task_that_was_interrupted_is_lost_unless_it_was_acknowledged_early() -> None:
    assert verdict_on(INTERRUPTED).lost == {"t"}
    assert verdict_on(INTERRUPTED, acks_late=False) == Verdict(sure={"t"}, cut_off={"t"})


@pytest.mark.parametrize(
    ("flushed_s", "verdict"),
    [(8.2, Verdict(sure={"t"}, flushed={"t"})), (7.9, Verdict(sure={"t"}, lost={"t"}))],
    ids=["before", "after"],
)
def test_a_task_that_was_published_before_a_flush_may_be_lost(flushed_s: float, verdict: Verdict) -> None:
    assert judge([Booking("t", 9.0, True, "sure", sent_s=8.0)], [], [], [], flushed_s) == verdict


@pytest.mark.parametrize("at_s", [9.1, 9.9, 10.05])
def test_a_task_that_was_acknowledged_early_is_cut_off_if_its_worker_was_killed_before_it_began(at_s: float) -> None:
    assert verdict_on(accepted=[accepted(VICTIM, at_s)], acks_late=False) == Verdict(sure={"t"}, cut_off={"t"})
    twice = [accepted(VICTIM, at_s), accepted(VICTIM, at_s)]
    assert verdict_on(accepted=twice, acks_late=False) == Verdict(sure={"t"}, cut_off={"t"})


@pytest.mark.parametrize(
    "acceptances",
    [
        [],
        [accepted(SURVIVOR, 9.9)],
        [accepted(SUSPENDED, 9.9)],
        [accepted(VICTIM, 8.9)],
        [accepted(VICTIM, 10.2)],
        [accepted(VICTIM, 9.9), accepted(SURVIVOR, 12.0)],
    ],
    ids=["never accepted", "by another", "by one that was suspended", "long before", "after", "again elsewhere"],
)
def test_any_other_that_was_acknowledged_early_is_lost(acceptances: list[Acceptance]) -> None:
    assert verdict_on(accepted=acceptances, acks_late=False) == Verdict(sure={"t"}, lost={"t"})


def test_a_task_that_is_acknowledged_late_is_lost_though_its_worker_was_killed_before_it_began() -> None:
    assert verdict_on(accepted=[accepted(VICTIM, 9.9)]) == Verdict(sure={"t"}, lost={"t"})


def test_a_task_that_ends_in_nothing_elsewhere_is_lost_though_it_was_accepted_by_a_worker_that_was_killed() -> None:
    again = Execution("t", SURVIVOR, 12.0, None)
    assert verdict_on(again, accepted=[accepted(VICTIM, 9.9)], acks_late=False).lost == {"t"}


def test_a_task_that_ends_in_nothing_for_no_reason_is_lost() -> None:
    assert verdict_on(Execution("t", SURVIVOR, 9.9, None), acks_late=False).lost == {"t"}


def test_a_task_that_was_interrupted_runs_again() -> None:
    assert verdict_on(INTERRUPTED, AGAIN) == Verdict(sure={"t"}, twice={"t"}, late_s=[3.0])


def test_a_suspended_task_may_end_twice() -> None:
    verdict = verdict_on(Execution("t", VICTIM, 9.9, 15.0), AGAIN)
    assert (verdict.twice, verdict.unexplained) == ({"t"}, set())


@pytest.mark.parametrize(
    "first",
    [Execution("t", SURVIVOR, 9.9, 10.2), Execution("t", VICTIM, 9.1, 9.2), Execution("t", VICTIM, 10.2, 10.3)],
    ids=["elsewhere", "ended before", "begun after"],
)
def test_a_task_that_was_not_running_there_then_must_not_run_twice(first: Execution) -> None:
    assert verdict_on(first, AGAIN).unexplained == {"t"}


def test_a_third_execution_is_not_explained_by_one_interruption() -> None:
    assert verdict_on(INTERRUPTED, AGAIN, AGAIN).unexplained == {"t"}


def test_a_task_that_begins_before_it_is_due_is_early() -> None:
    assert verdict_on(Execution("t", SURVIVOR, 8.9, 9.5)).early == {"t"}


def test_only_tracebacks_of_lost_connections_are_to_be_expected() -> None:
    lost = 'Traceback (most recent call last):\n  File "x", line 1\nredis.exceptions.ConnectionError: gone\n'
    bug = 'Traceback (most recent call last):\n  File "y", line 2\nKeyError: 5\n'
    assert strange_tracebacks(f"{lost}[INFO] a line\n{bug}[INFO] another\n{lost}") == [
        'Traceback (most recent call last):\n  File "y", line 2\nKeyError: 5'
    ]


def test_a_traceback_after_a_lost_connection_is_found() -> None:
    lost = "Traceback (most recent call last):\n  x\nConnectionError: gone\n"
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert len(strange_tracebacks(f"{lost}{during}Traceback (most recent call last):\n  y\nTypeError\n")) == 1

"""The verdict: compares what was booked with what the ledger says, and with what was done to which process."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.ledger import Acceptance, Execution
from tests.soak.publisher import Booking

#: After a task, so long may pass before its acknowledgement has left the worker: until then it still counts as running.
ACK_S = 0.3

#: A task that was accepted has begun, and written that down, within so many seconds on a busy machine.
BEGUN_S = 1.0


@dataclass(frozen=True)
class Harm:
    """Workers that were killed or suspended, or cut off for longer than their lease.

    Attributes:
        workers: the ids of their main processes.
        begin_s: when it began, unix time.
        end_s: when all of them were hurt; when those that were cut off have lost their lease.
        killed_s: when they were killed, at the earliest; infinite if they were not.
    """

    workers: frozenset[int]
    begin_s: float
    end_s: float
    killed_s: float = math.inf

    def struck(self, execution: Execution) -> bool:
        """Return whether a task was running in one of these workers then."""
        if execution.worker not in self.workers:
            return False
        if execution.started_s > self.end_s:
            return False
        return execution.ended_s is None or execution.ended_s >= self.begin_s - ACK_S

    def killed(self, acceptance: Acceptance) -> bool:
        """Return whether one of these workers was killed just after it accepted a task, perhaps before that began."""
        return acceptance.worker in self.workers and self.killed_s - BEGUN_S <= acceptance.at_s <= self.end_s


@dataclass
class Verdict:
    """What became of the tasks.

    Attributes:
        sure: submitted for sure; all other sets but `in_doubt` are parts of this one.
        in_doubt: publishing failed, so they may run or not.
        refused: the server refused them.
        lost: did not run to their end.
        cut_off: did not either, but that is what acknowledging early means: their worker was killed, while
            they ran or just before.
        twice: ran more than once.
        unexplained: of these, those that did not run in a killed or suspended worker then.
        flushed: did not either: the database was flushed after they were published.
        early: began before they were due.
        late_s: how much later than due each began, in the execution that came to its end.
    """

    sure: set[str] = field(default_factory=set)
    in_doubt: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    cut_off: set[str] = field(default_factory=set)
    flushed: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    unexplained: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    late_s: list[float] = field(default_factory=list)

    @property
    def median_late_s(self) -> float:
        """How late half of them were at most."""
        return median(self.late_s) if self.late_s else 0.0

    @property
    def most_late_s(self) -> float:
        """How late the latest was."""
        return max(self.late_s, default=0.0)


def judge(
    bookings: Iterable[Booking],
    executions: Iterable[Execution],
    acceptances: Iterable[Acceptance],
    harms: Sequence[Harm],
    flushed_s: float = 0.0,
) -> Verdict:
    """Return what became of the tasks that were booked; the database was flushed last at `flushed_s`, unix time."""
    by_task: dict[str, list[Execution]] = defaultdict(list)
    for execution in executions:
        by_task[execution.task_id].append(execution)
    accepted: dict[str, list[Acceptance]] = defaultdict(list)
    for acceptance in acceptances:
        accepted[acceptance.task_id].append(acceptance)
    verdict = Verdict()
    for booking in bookings:
        task_id = booking.task_id
        if booking.outcome == "sure":
            verdict.sure.add(task_id)
            _judge_one(verdict, booking, by_task[task_id], accepted[task_id], harms, flushed_s)
        elif booking.outcome == "in doubt":
            verdict.in_doubt.add(task_id)
        else:
            verdict.refused.add(task_id)
            if by_task[task_id]:
                verdict.unexplained.add(task_id)
    return verdict


def _judge_one(
    verdict: Verdict,
    booking: Booking,
    executions: list[Execution],
    acceptances: list[Acceptance],
    harms: Sequence[Harm],
    flushed_s: float,
) -> None:
    task_id = booking.task_id
    struck = [execution for execution in executions if any(harm.struck(execution) for harm in harms)]
    killed = [it for it in acceptances if any(harm.killed(it) for harm in harms)]
    finished = [execution.started_s for execution in executions if execution.ended_s is not None]
    if finished:
        verdict.late_s.append(min(finished) - booking.due_s)
    elif booking.sent_s < flushed_s:
        verdict.flushed.add(task_id)
    elif not booking.acks_late and (struck or (not executions and acceptances and killed == acceptances)):
        verdict.cut_off.add(task_id)
    else:
        verdict.lost.add(task_id)
    if len(executions) > 1:
        verdict.twice.add(task_id)
        if len(executions) - len(struck) > 1:
            verdict.unexplained.add(task_id)
    if any(execution.started_s < booking.due_s for execution in executions):
        verdict.early.add(task_id)

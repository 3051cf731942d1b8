"""DelayQTester: DelayQ with assertions, and with time that a test moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any

from celery_delayq.app import DelayQ
from celery_delayq.basics.times import Span, Time, due_at, span_s, to_ms
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.queue.holds import hold
from celery_delayq.testing import clock
from celery_delayq.testing.expectation import Expectation, nothing_matches, shown
from celery_delayq.testing.running import TaskRun, run
from celery_delayq.transport.keyed import holder_of
from celery_delayq.transport.messages import decode, decode_task, headers_of
from celery_delayq.transport.named import Named, called

#: By how much a due time may differ from what a test expects, in seconds.
TOLERANCE_S = 10.0

#: How many tasks run at once before a test is taken for one that never ends.
MOST_RUNS = 10_000


class DelayQTester(DelayQ):
    """`DelayQ(app)` for tests in which no worker runs. The fixture `delayq` of pytest is one.

        def test_unpaid_orders_are_cancelled(delayq):
            order = place_order()
            delayq.assert_scheduled(cancel_unpaid, args=(order.id,), countdown=30 * 60)
            delayq.advance(minutes=30)
            assert order.is_cancelled

    Tasks run in the thread of the test, when it calls `advance` or `run_due`. Time limits and rate limits do not hold,
    and periodic tasks do not run.

    "Now" is the time of this process, so that tests may freeze it with time-machine or freezegun.
    """

    def assert_scheduled(
        self,
        task: Named,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: Span | None = None,
        due: Time | None = None,
        queue: str | None = None,
        tolerance: Span = TOLERANCE_S,
    ) -> ScheduledTask:
        """Check that a task waits. What is not given may be anything.

        Args:
            task: the task, its name, or a signature.
            args: its positional arguments, as they were sent; by default those of the signature, if there is one.
            kwargs: its keyword arguments, in the same way.
            countdown: a timedelta, or seconds: from now until it is due; give either `countdown` or `due`.
            due: when it is due.
            queue: name of its queue.
            tolerance: by how much its due time may differ: a timedelta, or seconds.

        Returns:
            The task; the one that is due first, if several match.

        Raises:
            AssertionError: none matches. The message shows what waits instead.
        """
        expected = _expected(task, args, kwargs, _due_ms(countdown, due), _tolerance_ms(tolerance), queue)
        differing = []
        for found in self.iter_scheduled():
            differences = expected.differences(found, self.app.conf.accept_content)
            if not differences:
                return found
            differing.append((found, differences))
        raise AssertionError(nothing_matches(expected, differing, self._ready(), clock.now_ms()))

    def assert_not_scheduled(
        self,
        task: Named,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: Span | None = None,
        due: Time | None = None,
        queue: str | None = None,
        tolerance: Span = TOLERANCE_S,
    ) -> None:
        """Check that no such task waits; see `assert_scheduled` for the arguments. Give few: then more is checked.

        Raises:
            AssertionError: one does. The message shows it.
        """
        expected = _expected(task, args, kwargs, _due_ms(countdown, due), _tolerance_ms(tolerance), queue)
        for found in self.iter_scheduled():
            if not expected.differences(found, self.app.conf.accept_content):
                raise AssertionError(f"a task waits that should not: {shown(found, clock.now_ms())}")

    def advance(
        self,
        by: timedelta = timedelta(0),
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        propagate: bool = True,
    ) -> list[TaskRun]:
        """Let time pass for what waits, and run what falls due meanwhile, in due order.

        Time goes from one due time to the next. So a task that sends another one with a countdown, or retries, does it
        at its own due time; what falls due within the rest of the time runs, too. Tasks that are ready, because they
        were sent without a countdown, run first.

        No clock is set: everything that waits becomes due earlier instead, and so do its eta and its time to expire.
        `datetime.now()` is the same as before, in tasks, too.

        Args:
            by: how much time, as a timedelta; or give the parts.
            days: days.
            hours: hours.
            minutes: minutes.
            seconds: seconds.
            propagate: whether a task's exception is raised here. Time stops then: what would have run later still
                waits, and another call goes on. If False, `TaskRun.error` has it.

        Returns:
            The runs, in their order. A retry is a run of its own, if it has come to that.

        Raises:
            TypeError: `by` is no timedelta.
            ValueError: the time is negative.
            RuntimeError: 10,000 tasks ran, and more are due: a task sends itself again and again.
        """
        if not isinstance(by, timedelta):
            raise TypeError(
                f"advance() needs a timedelta, or names as in advance(minutes=5), advance(seconds=60): not {by!r}"
            )
        by += timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if by < timedelta(0):
            raise ValueError(f"time does not go back: advance() got {by}")
        left_ms = ceil(by / timedelta(milliseconds=1))
        runs: list[TaskRun] = []
        while True:
            taken = self._take()
            if taken is None:
                waited_ms = self._make_ready(left_ms)
                left_ms -= waited_ms or 0
                if waited_ms is None:
                    break
                continue
            if len(runs) == MOST_RUNS:
                raise RuntimeError(
                    f"{MOST_RUNS} tasks ran, and more are due, the next is {runs[-1].name}: does it send itself again?"
                )
            runs.append(self._run(*taken))
            if propagate and (error := runs[-1].error) is not None:
                raise error
        with self._inspector("cannot move time") as inspector:
            clock.move_on(inspector.lists, left_ms)
        return runs

    def run_due(self, *, propagate: bool = True) -> list[TaskRun]:
        """Run what is ready or due now, in due order; and what these tasks send without a countdown. See `advance`."""
        return self.advance(propagate=propagate)

    def _take(self) -> tuple[BrokerList, bytes] | None:
        """Take the next message from a broker list, in kombu's order: by priority, then by queue."""
        with self._inspector("cannot take a message") as inspector:
            client, lists = inspector.lists.client, _in_order(inspector.lists)
            with client.pipeline(transaction=False) as pipe:
                for one in lists:
                    pipe.llen(one.name)
                sizes = pipe.execute()
            first = next((one for one, size in zip(lists, sizes, strict=True) if size), None)
            return None if first is None else (first, client.rpop(first.name))

    def _make_ready(self, within_ms: int) -> int | None:
        """Let time pass until the next message is due, and move it to its broker list.

        Returns:
            How much time passed, in ms; None if no message is due within the given time.
        """
        with self._inspector("cannot move time") as inspector:
            lists = inspector.lists
            waiting, _ = lists.waiting()
            heads = [(head.score, found) for found in waiting for head in lists.delayed_queue(found).peek()]
            if not heads:
                return None
            due_ms, broker_list = min(heads)
            wait_ms = max(0, due_ms - clock.now_ms())
            if wait_ms > within_ms:
                return None
            clock.move_on(lists, wait_ms)
            queue = lists.delayed_queue(broker_list)
            queue.release([(head, head.payload) for head in queue.peek()])
            return wait_ms

    def _run(self, broker_list: BrokerList, raw: bytes) -> TaskRun:
        message = decode_task(raw)
        if message is None:
            raise RuntimeError(f"a message in queue {broker_list.queue!r} is not one of a task: {raw[:200]!r}")
        self._say(broker_list, message, "start")
        try:
            return run(self.app, message)
        finally:
            self._say(broker_list, message, "done")

    def _say(self, broker_list: BrokerList, message: Mapping[str, Any], what: Any) -> None:
        """Say what the task of a message does, if that holds a unique key."""
        holder = holder_of(message)
        if holder is not None:
            with self._inspector("cannot give up a unique key") as inspector:
                lists = inspector.lists
                hold(lists.delayed_queue(broker_list).keys, holders=[holder], what=what).run(lists.client)

    def _ready(self) -> list[str]:
        """Return names and arguments of the tasks that wait for nothing but a worker."""
        with self._inspector("cannot read messages") as inspector:
            return [
                f"{headers.get('task')} args={headers.get('argsrepr')} kwargs={headers.get('kwargsrepr')}"
                f" queue={broker_list.queue!r} id={headers.get('id')}"
                for broker_list in _in_order(inspector.lists)
                for raw in reversed(inspector.lists.client.lrange(broker_list.name, 0, -1))
                for headers in [headers_of(decode(raw) or {})]
            ]


def _in_order(lists: BrokerLists) -> list[BrokerList]:
    return sorted(lists.all(), key=lambda found: (found.priority, found.queue))


def _expected(task: Named, args: Any, kwargs: Any, *rest: Any) -> Expectation:
    name, signature = called(task)
    args, kwargs = (signature.get(one) if it is None else it for one, it in (("args", args), ("kwargs", kwargs)))
    return Expectation(name, args, kwargs, *rest)


def _tolerance_ms(tolerance: Span) -> int:
    return round(span_s(tolerance, "tolerance") * 1000)


def _due_ms(countdown: Span | None, due: Time | None) -> int | None:
    if countdown is None and due is None:
        return None
    return to_ms(due_at(clock.now_ms(), countdown=countdown, eta=due), "due")

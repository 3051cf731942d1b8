"""Methods of `DelayQ` for coroutines: they wait in threads, and the event loop goes on."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue, DelayQ, Unique, UnknownQueue
from celery_delayq.schedule.api import Schedule
from tests.brokers import Server
from tests.integration.test_redis_is_away import CALLS, ERRORS, hanging, processes, shop
from tests.support import in_a_child, wait_until

pytestmark = pytest.mark.on_cluster

#: How many calls run at a time.
MOST = 10


@pytest.fixture
def app(broker_url: str, waiting: DelayedQueue) -> Iterator[Any]:
    with shop(broker_url) as app:
        yield app


@pytest.fixture
def delayq(app: Any) -> DelayQ:
    delayq: DelayQ = app.delayq
    return delayq


class Held:
    """A task that is sent once it may be; it is asked for that in the thread in which it is sent."""

    def __init__(self, app: Any) -> None:
        self.asked, self._may_go = threading.Semaphore(0), threading.Event()
        self.seen: list[str] = []
        held = self

        class Task(app.Task):  # type: ignore[misc, name-defined]
            name = "held"

            def apply_async(self, *args: Any, **options: Any) -> Any:
                held.seen.append(VARIABLE.get())
                held.asked.release()
                assert held._may_go.wait(60)
                return super().apply_async(*args, **options)

        self.task = app.register_task(Task())

    async def has_begun(self, times: int = 1) -> None:
        for _ in range(times):
            await asyncio.get_running_loop().run_in_executor(None, self.asked.acquire)

    def go_on(self) -> None:
        self._may_go.set()


VARIABLE: ContextVar[str] = ContextVar("variable", default="")


@pytest.fixture
def held(app: Any) -> Iterator[Held]:
    held = Held(app)
    yield held
    held.go_on()


@pytest.mark.parametrize("kind", [DelayQ, Schedule])
def test_each_method_that_takes_a_timeout_has_one_for_coroutines(kind: type) -> None:
    methods = {name: it for name, it in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
    blocking = {
        name: it
        for name, it in methods.items()
        if "timeout" in inspect.signature(it).parameters
        and not (inspect.iscoroutinefunction(it) or inspect.isasyncgenfunction(it))
    }
    for name, method in blocking.items():
        other = methods[f"a{name}"]
        assert inspect.signature(other).parameters.keys() == inspect.signature(method).parameters.keys()
        assert other.__name__ == f"a{name}"
        assert f"`{name}`" in str(other.__doc__)
    assert methods.keys() - blocking.keys() - {f"a{name}" for name in blocking} <= {"asend", "was_new"}


def test_a_task_is_sent_and_found_and_cancelled(app: Any, delayq: DelayQ) -> None:
    async def use() -> None:
        note = app.tasks["note"]
        sent = [
            await delayq.asend(note, (1,), countdown=60),
            await delayq.asend("note", kwargs={"value": 2}, countdown=60, timeout=30),
            await delayq.asend("elsewhere", (3,), countdown=60, queue="celery"),
            await delayq.asend(note.s(4), countdown=60),
        ]
        found = [task async for task in delayq.aiter_scheduled(limit=3)]
        assert [task.id for task in found] == [result.id for result in sent]
        assert [task.args for task in found] == [(1,), (), (3,), (4,)]
        assert (await delayq.aget(sent[0])) == delayq.get(sent[0].id)
        assert await delayq.acancel(sent[:3], timeout=30) == {result.id: True for result in sent[:3]}
        assert not await delayq.acancel(sent[0])
        assert sum(each.delayed for each in (await delayq.acounts()).queues) == 1

    asyncio.run(use())


def test_a_unique_task_is_sent_once(app: Any, delayq: DelayQ) -> None:
    async def use() -> None:
        send = [delayq.asend("note", unique=Unique(key="a"), countdown=60, timeout=30) for _ in range(3 * MOST)]
        results = await asyncio.gather(*send)
        assert len({result.id for result in results}) == 1
        assert [delayq.was_new(result) for result in results].count(True) == 1
        with pytest.raises(TypeError):
            await delayq.asend("note", countdown="soon")

    asyncio.run(use())


def test_a_task_that_is_eager_runs(app: Any, delayq: DelayQ) -> None:
    app.conf.task_always_eager = True
    assert asyncio.run(delayq.asend(app.tasks["note"], (42,))).get() == 42


def test_periodic_tasks(delayq: DelayQ) -> None:
    async def use() -> None:
        schedule = delayq.schedule
        await schedule.aadd("a", "note", 60, tz="Europe/Berlin", timeout=30)
        assert (await schedule.apause("a")).paused
        assert [entry.name async for entry in schedule] == ["a"]
        await schedule.aremove("a")
        assert [entry.name async for entry in schedule] == []

    asyncio.run(use())


def test_errors_are_those_of_the_method(delayq: DelayQ) -> None:
    async def use(method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> None:
        await method(*args, **kwargs)

    with pytest.raises(UnknownQueue, match="did you mean 'celery'"):
        asyncio.run(use(delayq.ascheduled, "celer"))
    with pytest.raises(ValueError, match="timeout must be above 0"):
        asyncio.run(use(delayq.acancel, "a", timeout=0))


@pytest.mark.parametrize("name", ["cancel", "apply_async_many", "iter_scheduled", "schedule.get"])
def test_a_call_ends_if_redis_hangs(app: Any, delayq: DelayQ, broker_server: Server, name: str) -> None:
    class Awaited:
        """Calls the method of the same name with an `a` in front."""

        def __init__(self, of: Any) -> None:
            self._of, self.app = of, app

        def __getattr__(self, name: str) -> Any:
            if name == "schedule":
                return Awaited(self._of.schedule)
            if name != "iter_scheduled":
                return lambda *args, **kwargs: asyncio.run(getattr(self._of, f"a{name}")(*args, **kwargs))

            async def tasks(**kwargs: Any) -> list[Any]:
                return [task async for task in self._of.aiter_scheduled(**kwargs)]

            return lambda **kwargs: asyncio.run(tasks(**kwargs))

    with hanging(*processes(broker_server)), pytest.raises(ERRORS):
        CALLS[name](Awaited(delayq))


def test_sending_ends_if_redis_hangs(app: Any, delayq: DelayQ, broker_server: Server) -> None:
    with hanging(*processes(broker_server)):
        for task in (app.tasks["note"], "elsewhere", app.tasks["note"].s()):
            with pytest.raises(OperationalError):
                asyncio.run(delayq.asend(task, countdown=60, timeout=0.2))
    with shop("delayq://127.0.0.1:1/0") as other, pytest.raises(OperationalError, match="refused"):
        asyncio.run(other.delayq.asend("note", timeout=30))


def test_the_event_loop_goes_on_while_redis_hangs(delayq: DelayQ, broker_server: Server) -> None:
    async def use() -> None:
        with hanging(*processes(broker_server)):
            call = asyncio.create_task(delayq.aget("a"))
            await asyncio.sleep(0)
        assert await call is None

    asyncio.run(use())


def test_a_call_that_has_begun_ends_although_its_coroutine_is_cancelled(delayq: DelayQ, held: Held) -> None:
    async def use() -> None:
        call = asyncio.create_task(delayq.asend(held.task, countdown=60))
        await held.has_begun()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.gather(*(delayq.aget("a") for _ in range(3 * MOST)))  # others do not notice

    asyncio.run(use())
    held.go_on()  # and the event loop has ended
    wait_until(lambda: [task.name for task in delayq.scheduled()] == ["held"], "it is sent")


def test_a_call_that_waits_for_a_thread_never_begins_if_it_is_cancelled_or_its_time_is_over(
    delayq: DelayQ, held: Held
) -> None:
    async def use() -> None:
        calls = [asyncio.create_task(delayq.asend(held.task)) for _ in range(MOST)]
        await held.has_begun(MOST)
        cancelled = asyncio.create_task(delayq.apause("celery", timeout=600))
        waits = asyncio.create_task(delayq.aget("a", timeout=600))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(OperationalError, match="threads"):
            await delayq.apause("celery", timeout=0.2)
        held.go_on()
        assert len(await asyncio.gather(*calls)) == MOST
        assert await waits is None
        assert await delayq.apaused() == []

    asyncio.run(use())


def test_context_variables_are_those_of_the_coroutine(delayq: DelayQ, held: Held) -> None:
    async def use(value: str) -> None:
        VARIABLE.set(value)
        await delayq.asend(held.task)

    async def both() -> None:
        held.go_on()
        await asyncio.gather(use("a"), use("b"))

    asyncio.run(both())
    assert sorted(held.seen) == ["a", "b"]


def test_a_forked_child_has_threads_of_its_own(delayq: DelayQ) -> None:
    async def use() -> bool:
        return await delayq.aget("a", timeout=30) is None

    assert asyncio.run(use())
    assert in_a_child(lambda: asyncio.run(use()))
    assert asyncio.run(use())


def test_a_program_ends_although_a_call_hangs(broker_server: Server, broker_url: str) -> None:
    program = f"""
import asyncio
from celery import Celery
from celery_delayq import DelayQ

delayq = DelayQ(Celery("shop", broker={broker_url!r}))
delayq.app.conf.broker_transport_options = {{"socket_timeout": 600.0}}

async def main():
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, input)
    call = asyncio.create_task(delayq.aget("a"))
    await asyncio.sleep(0)

asyncio.run(main())
print("done")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    with hanging(*processes(broker_server)):
        out, _ = process.communicate("\n", timeout=120)
    assert (out, process.returncode) == ("done\n", 0)

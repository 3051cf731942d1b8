"""Tasks that hold a unique key, as publishers send them: what is stored, what is returned, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery, Task, chain, group
from celery.exceptions import TaskRevokedError

from celery_delayq import ConfigurationError, DelayedQueue, KeyHeld, NotAllSent, Throttle, Unique
from celery_delayq.transport.messages import decode, json_body
from tests.support import is_raised, wait_until
from tests.worker_app import protocol_1, publisher

pytestmark = pytest.mark.on_cluster(always=True)

KEY = "remind:42"


@pytest.fixture
def remind(app: Celery, waiting: DelayedQueue) -> Any:
    return app.tasks["note"]


@pytest.fixture
def rebuild(app: Celery, waiting: DelayedQueue) -> Iterator[Any]:
    """A task with `unique` in its decorator."""

    @app.task(name="rebuild", unique=Unique(by=("cart",)), shared=False)
    def rebuild(cart: int, reason: str = "none") -> None: ...

    yield rebuild
    app.tasks.pop("rebuild", None)


def args_of(waiting: DelayedQueue) -> list[Any]:
    """The arguments of what waits, in due order."""
    return [json_body(message)[0] for entry in waiting.peek(99) if (message := decode(entry.payload)) is not None]


def test_the_first_one_stays(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY)
    second = remind.apply_async(("b",), countdown=900, unique=KEY)
    assert second.id == first.id
    assert (app.delayq.was_new(first), app.delayq.was_new(second)) == (True, False)
    assert (first.was_new, second.was_new) == (True, False)
    assert args_of(waiting) == [["a"]]
    found = app.delayq.waiting(KEY)
    assert found.id == first.id
    assert app.delayq.waiting("another") is None


def test_the_last_one_stays(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY)
    second = remind.apply_async(("b",), countdown=300, unique=KEY, on_conflict="replace")
    assert second.id != first.id
    assert second.was_new
    assert args_of(waiting) == [["b"]]
    assert app.delayq.get(first) is None
    assert app.delayq.waiting(KEY).id == second.id


def test_the_later_time_counts(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY)
    due = app.delayq.get(first).due
    for countdown in (300, 900):
        second = remind.apply_async(("b",), countdown=countdown, unique=KEY, on_conflict="extend")
        assert (second.id, second.was_new) == (first.id, False)
    found = app.delayq.get(first)
    assert 299 < (found.due - due).total_seconds() < 330
    assert found.headers["eta"].startswith(found.due.isoformat()[:19])
    assert args_of(waiting) == [["a"]]


def test_refused_with_an_error(remind: Any, waiting: DelayedQueue) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY)
    with pytest.raises(KeyHeld, match=f"task {first.id} holds the unique key 'remind:42'") as caught:
        remind.apply_async(("b",), countdown=600, unique=KEY, on_conflict="raise")
    assert (caught.value.key, caught.value.task_id) == (KEY, first.id)
    assert args_of(waiting) == [["a"]]


def test_cancelled_it_is_free(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY)
    assert app.delayq.cancel(first)
    assert app.delayq.waiting(KEY) is None
    assert remind.apply_async(("b",), countdown=600, unique=KEY).was_new


def test_rescheduled_it_is_held(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY)
    assert app.delayq.reschedule(first, countdown=900)
    assert remind.apply_async(("b",), countdown=600, unique=KEY).id == first.id


@pytest.mark.parametrize(("for_", "is_new"), [("waiting", True), ("until_start", False), ("until_done", False)])
def test_sent_to_its_queue(remind: Any, waiting: DelayedQueue, app: Celery, for_: Any, is_new: bool) -> None:
    unique = Unique(key=KEY, for_=for_)
    first = remind.apply_async(("a",), countdown=600, unique=unique)
    assert app.delayq.run_now(first)
    assert remind.apply_async(("b",), countdown=600, unique=unique).was_new == is_new
    assert app.delayq.forget(KEY)
    assert not app.delayq.forget(KEY)
    assert remind.apply_async(("c",), countdown=700, unique=unique).was_new


def test_without_a_countdown(remind: Any, waiting: DelayedQueue) -> None:
    assert remind.apply_async(("a",), unique=KEY).was_new
    assert remind.apply_async(("b",), unique=KEY).was_new, "nothing waits until it is due"
    first = remind.apply_async(("c",), unique=Unique(key="other", for_="until_start"))
    assert remind.apply_async(("d",), countdown=600, unique="other").id == first.id
    assert waiting.client.llen("celery") == 3


def test_priorities_share_a_key(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    first = remind.apply_async(("a",), countdown=600, unique=KEY, priority=3)
    assert remind.apply_async(("b",), countdown=600, unique=KEY).id == first.id
    second = remind.apply_async(("b",), countdown=600, unique=KEY, on_conflict="replace")
    assert app.delayq.get(first) is None
    assert app.delayq.waiting(KEY).id == second.id


def test_queues_do_not(remind: Any, waiting: DelayedQueue) -> None:
    assert remind.apply_async(("a",), countdown=600, unique=KEY).was_new
    assert remind.apply_async(("b",), countdown=600, unique=KEY, queue="other").was_new


def test_many(remind: Any, waiting: DelayedQueue, app: Celery) -> None:
    signatures = [remind.s(number).set(countdown=600, unique=f"key {number % 3}") for number in range(9)]
    plain = [remind.s(number).set(countdown=600) for number in range(9)]
    found = app.delayq.apply_async_many(signatures + plain)
    assert len(found) == 18
    assert len({result.id for result in found[:9]}) == 3
    assert [app.delayq.was_new(result) for result in found] == [True] * 3 + [False] * 6 + [True] * 9
    assert waiting.size() == 12
    more = [remind.s(number).set(countdown=600, unique=f"key {number}") for number in range(5)]
    assert app.delayq.apply_async_many(more, results=False) == 2
    with pytest.raises(NotAllSent, match="KeyHeld"):
        app.delayq.apply_async_many([remind.s(1).set(countdown=600, unique="key 1", on_conflict="raise")])


def test_many_of_a_task_that_is_unique(rebuild: Any, waiting: DelayedQueue, app: Celery) -> None:
    found = app.delayq.apply_async_many(rebuild.s(number % 2).set(countdown=600) for number in range(6))
    assert len({result.id for result in found}) == waiting.size() == 2


class TestDecorated:
    def test_by_some_arguments(self, rebuild: Any, waiting: DelayedQueue, app: Celery) -> None:
        first = rebuild.apply_async((7,), countdown=600)
        assert rebuild.apply_async((), {"cart": 7, "reason": "other"}, countdown=600).id == first.id
        assert rebuild.apply_async(("7",), countdown=600).was_new
        assert app.delayq.waiting(rebuild.s(7)).id == first.id
        assert app.delayq.forget(rebuild.s(7))
        assert rebuild.s(7).apply_async(countdown=600).was_new

    def test_options_come_first(self, rebuild: Any, waiting: DelayedQueue, app: Celery) -> None:
        rebuild.apply_async((7,), countdown=600)
        assert app.delayq.was_new(rebuild.apply_async((7,), countdown=600, unique=None))
        assert rebuild.apply_async((7,), countdown=600, unique="other").was_new
        assert rebuild.apply_async((7,), countdown=600, on_conflict="replace").was_new
        assert waiting.size() == 3
        assert app.delayq.waiting("other") is not None

    def test_by_its_name(self, rebuild: Any, waiting: DelayedQueue, app: Celery) -> None:
        first = rebuild.apply_async((7,), countdown=600)
        assert app.send_task("rebuild", (7,), countdown=600).id == first.id

    @pytest.mark.parametrize("used", [True, False])
    def test_by_its_name_before_the_app_was_finalized(
        self, used: bool, waiting: DelayedQueue, broker_url: str, ledger_url: str
    ) -> None:
        with publisher(broker_url, ledger_url) as early:

            @early.task(name="rebuild", unique=Unique(by=("cart",)), shared=False)
            def rebuild(cart: int) -> None: ...

            assert not early.finalized
            send = partial(early.send_task, "rebuild", (7,), countdown=600)
            first = rebuild.apply_async((7,), countdown=600) if used else send()
            assert send().id == first.id
            assert waiting.size() == 1

    def test_an_app_without_autofinalize(self, waiting: DelayedQueue, broker_url: str, ledger_url: str) -> None:
        with publisher(broker_url, ledger_url) as strict:
            strict.autofinalize = False
            strict.send_task("elsewhere", (7,), countdown=600)
            assert not strict.finalized
            assert waiting.size() == 1

    def test_an_argument_that_it_has_not(self, app: Celery, waiting: DelayedQueue) -> None:
        @app.task(name="wrong", unique=Unique(by=("basket",)), shared=False)
        def wrong(cart: int) -> None: ...

        with is_raised(ValueError, r"task wrong has no argument 'basket', but cart"):
            wrong.apply_async((1,), countdown=600)
        assert not waiting.size()

    def test_a_key_in_the_decorator(self, app: Celery, waiting: DelayedQueue) -> None:
        @app.task(name="alone", unique="the only one", shared=False)
        def alone(number: int) -> None: ...

        first = alone.apply_async((1,), countdown=600)
        assert alone.apply_async((2,), countdown=600).id == first.id
        assert alone.apply_async((3,), countdown=600, on_conflict="replace").was_new
        assert app.delayq.waiting(alone.s(1)) is not None
        app.tasks.pop("alone")

    def test_attributes_of_these_names_that_are_none_of_ours(self, app: Celery, waiting: DelayedQueue) -> None:
        class Odd(Task):
            name = "odd"
            unique = True

            def run(self) -> None: ...

            def throttle(self) -> None: ...

        odd = app.register_task(Odd())
        assert len({odd.apply_async(countdown=600).id for _ in range(3)}) == waiting.size() == 3
        app.tasks.pop("odd")


class TestCanvas:
    def test_a_signature(self, remind: Any, waiting: DelayedQueue) -> None:
        signature = remind.s("a").set(countdown=600, unique=KEY)
        assert signature.apply_async().id == signature.apply_async().id
        assert waiting.size() == 1

    def test_a_member_of_a_group_that_is_not_sent_is_revoked(self, remind: Any, waiting: DelayedQueue) -> None:
        first = remind.apply_async(("a",), countdown=600, unique=KEY)
        found = group(remind.s("b").set(countdown=600, unique=KEY), remind.s("c").set(countdown=600)).apply_async()
        assert waiting.size() == 2
        with pytest.raises(TaskRevokedError, match=f"task {first.id} holds its unique key"):
            found.results[0].get(timeout=5)
        assert found.results[1].state == "PENDING"

    def test_the_first_of_a_chain(self, remind: Any, waiting: DelayedQueue) -> None:
        first = remind.apply_async(("a",), countdown=600, unique=KEY)
        found = chain(remind.si("b").set(countdown=600, unique=KEY), remind.si("c")).apply_async()
        assert waiting.size() == 1
        with pytest.raises(TaskRevokedError, match=f"task {first.id} holds its unique key"):
            found.parent.get(timeout=5)


class TestWrong:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"unique": 42}, TypeError, "must be a key or Unique"),
            (
                {"unique": KEY, "on_conflict": "drop"},
                ValueError,
                "on_conflict must be one of 'ignore', 'replace', 'extend', 'raise'",
            ),
            ({"unique": Unique(key=KEY), "on_conflict": 7}, ValueError, "on_conflict must be one of"),
            ({"on_conflict": "ignore"}, TypeError, "is sent with on_conflict='ignore', but without a unique key"),
            ({"unique": ""}, ValueError, "key must be a text, not ''"),
        ],
    )
    def test_options(
        self, remind: Any, waiting: DelayedQueue, options: dict[str, Any], error: type[Exception], match: str
    ) -> None:
        with is_raised(error, match):
            remind.apply_async(("a",), countdown=600, **options)
        assert not waiting.size()

    def test_arguments_that_make_no_key(self, rebuild: Any, waiting: DelayedQueue) -> None:
        with is_raised(TypeError, "the arguments of task rebuild that make its key cannot become JSON"):
            rebuild.apply_async((object(),), countdown=600)
        assert not waiting.size()

    def test_a_task_without_a_key(self, remind: Any, app: Celery) -> None:
        for method in (app.delayq.waiting, app.delayq.forget):
            with is_raised(ValueError, "task note is not unique: give its key, or the option `unique`"):
                method(remind.s(1))
            with is_raised(TypeError, "a unique key must be given by its text, or by the signature of a task"):
                method(7)

    @pytest.mark.parametrize(
        ("given", "error", "match"),
        [
            ({"ttl": 0}, ValueError, "ttl must be more than 0 and at most a year, not 0"),
            ({"ttl": timedelta(days=400)}, ValueError, "ttl must be more than 0 and at most a year"),
            ({"ttl": "1h"}, TypeError, "ttl must be a number of seconds, or a timedelta, not '1h'"),
            ({"ttl": None}, TypeError, "ttl must be"),
            ({"for_": "ever"}, ValueError, "for_ must be one of"),
            ({"by": "cart"}, TypeError, "by must be the names of arguments"),
            ({"by": ("cart",), "key": "x"}, TypeError, "give it either by or key"),
        ],
    )
    def test_of_unique(self, given: dict[str, Any], error: type[Exception], match: str) -> None:
        with is_raised(error, match):
            Unique(**given)

    def test_an_id_that_waits_already(self, remind: Any, waiting: DelayedQueue) -> None:
        remind.apply_async(("a",), countdown=600, task_id="mine")
        with pytest.raises(ValueError, match="the id 'mine' already waits in 'celery', with another unique key than"):
            remind.apply_async(("b",), countdown=600, task_id="mine", unique=KEY)

    @pytest.mark.one_server("kombu has no transport of its own for a cluster")
    def test_another_broker(self, waiting: DelayedQueue, broker_url: str) -> None:
        from celery_delayq import DelayQ

        other = Celery("other", broker=broker_url.replace("delayq", "redis", 1), set_as_current=False)
        DelayQ(other)
        with pytest.raises(ConfigurationError, match="the broker URL has to begin with delayq://"):
            other.send_task("note", countdown=600, unique=KEY)
        other.close()
        waiting.client.delete("celery")


def test_without_the_option_messages_are_as_they_were(remind: Any, waiting: DelayedQueue) -> None:
    remind.apply_async(("a",), countdown=600)
    (entry,) = waiting.peek(9)
    message = decode(entry.payload)
    assert message is not None
    assert "delayq_unique" not in message["properties"]
    assert not waiting.client.exists(waiting.keys.holds)


def test_keys_die_with_their_tasks(remind: Any, waiting: DelayedQueue, broker_client: redis.Redis) -> None:
    for number in range(50):
        remind.apply_async((number,), eta=None, countdown=0.05, unique=f"key {number}")
    wait_until(lambda: waiting.transfer(1000) and not waiting.size(), "all are due")
    assert not waiting.client.exists(waiting.keys.holds, *waiting.keys.waiting)


@pytest.mark.parametrize("option", [{"unique": KEY}, {"throttle": Throttle("1/m")}], ids=["unique", "throttle"])
def test_message_protocol_1_has_no_place_for_it(
    remind: Any, waiting: DelayedQueue, app: Celery, option: dict[str, Any]
) -> None:
    says_so = pytest.raises(ConfigurationError, match=f"the option {next(iter(option))} .*needs task_protocol = 2")
    with protocol_1(app), says_so:
        remind.apply_async(("a",), countdown=600, **option)
    assert waiting.size() == 0

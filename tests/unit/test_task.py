"""What is said of a stored message by its headers, and how they get another eta; its body stays closed."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_delayq.inspector.broker_lists import BrokerList
from celery_delayq.inspector.pages import Criteria, Page
from celery_delayq.inspector.task import ScheduledTask, scheduled_task
from celery_delayq.queue import codec
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.dead_letter import DeadLetter
from celery_delayq.queue.dead_letters import DeadPage
from celery_delayq.queue.entry import Entry
from celery_delayq.schedule.periodic_task import PeriodicTask
from celery_delayq.transport.messages import marks_of, marks_within, with_eta

LIST = BrokerList("shop.celery\x06\x163", "celery", 3)

HEADERS = {
    "lang": "py",
    "task": "cancel_unpaid",
    "id": "the-id",
    "eta": "2030-01-01T09:00:00+09:00",
    "expires": "2030-01-02T00:00:00+00:00",
    "group": "the-group",
    "retries": 2,
    "root_id": "the-root",
    "parent_id": "the-parent",
    "argsrepr": "(42,)",
    "kwargsrepr": "{'why': 'unpaid'}",
    "stamped_headers": ["shop"],
    "stamps": {"shop": ["eu"]},
}


NEW_YEAR = datetime(2030, 1, 1, tzinfo=timezone.utc)


class Bomb:
    """Fails whoever unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("it was unpickled",))


def stored(headers: Any = HEADERS, **message: Any) -> bytes:
    body = base64.b64encode(pickle.dumps(Bomb())).decode()
    properties = {"priority": 5, "delivery_tag": "tag", "body_encoding": "base64", "delayq_due": 1893456000000}
    content = {"body": body, "content-type": "application/x-python-serialize", "content-encoding": "binary"}
    return json.dumps({**content, "headers": headers, "properties": properties, **message}).encode()


def task_of(payload: bytes, due_ms: int = 1893456000000, now_ms: int = 1893455999000) -> ScheduledTask:
    entry_id = OfferId(1_000_000, codec.message_key("the-id")).to_bytes()
    return scheduled_task(Entry(due_ms, payload, entry_id, codec.pack(entry_id, payload)), LIST, now_ms)


class TestATask:
    def test_is_all_that_its_headers_say(self) -> None:
        payload = stored()
        task = task_of(payload)
        assert task.to_dict() == {
            "id": "the-id",
            "name": "cancel_unpaid",
            "args": "(42,)",
            "kwargs": "{'why': 'unpaid'}",
            "due": "2030-01-01T00:00:00+00:00",
            "time_left": 1.0,
            "queue": "celery",
            "priority": 5,
            "broker_list": "shop.celery\x06\x163",
            "retries": 2,
            "eta": "2030-01-01T00:00:00+00:00",
            "expires": "2030-01-02T00:00:00+00:00",
            "root_id": "the-root",
            "parent_id": "the-parent",
            "group_id": "the-group",
            "size": len(payload),
            "content_type": "application/x-python-serialize",
            "offered": "1970-01-01T00:00:01+00:00",
            "headers": HEADERS,
            "state": "delayed",
        }
        assert task.is_task
        assert task.stamps == {"shop": ["eu"]}
        json.dumps(task.to_dict())

    def test_is_frozen_hashable_and_the_same_when_read_again(self) -> None:
        task = task_of(stored())
        with pytest.raises(AttributeError):
            task.id = "other"  # type: ignore[misc]
        later = task_of(stored(), now_ms=1893456001000)
        assert later.time_left == timedelta(seconds=-1)
        assert {task, later} == {task}

    def test_has_its_arguments_if_they_are_json(self) -> None:
        sent = dumps([[1, "é", UUID(int=7), [NEW_YEAR]], {"why": Decimal("1.5")}, {"callbacks": None}])
        for body in (sent, base64.b64encode(sent.encode()).decode()):
            properties = {"body_encoding": "base64"} if body is not sent else {}
            content = {"body": body, "content-type": "application/json", "content-encoding": "utf-8"}
            task = task_of(stored(**content, properties=properties))
            assert task.args == (1, "é", UUID(int=7), [NEW_YEAR])
            assert task.kwargs == {"why": Decimal("1.5")}
            assert (task.args_text, task.kwargs_text) == ("(42,)", "{'why': 'unpaid'}")
        compressed = task_of(stored({**HEADERS, "compression": "application/x-gzip"}, **content, properties=properties))
        assert (compressed.args, compressed.kwargs) == (None, None)

    @pytest.mark.parametrize(
        "body",
        [
            *("", "{", "null", "[]", "[[1]]", "[[], {}]", "[{}, [], {}]", "[1, {}, {}]", '{"args": [1], "kwargs": {}}'),
            *('[[{"__type__": "unheard of", "__value__": 1}], {}, {}]', "[" * 100_000),
            '[[{"__type__": "datetime", "__value__": "never"}], {}, {}]',
        ],
    )
    def test_has_no_arguments_if_its_body_is_another(self, body: str) -> None:
        content = {"body": body, "content-type": "application/json", "content-encoding": "utf-8", "properties": {}}
        task = task_of(stored(**content))
        assert (task.args, task.kwargs) == (None, None)
        assert task.args_text == "(42,)"

    def test_has_no_arguments_if_they_are_pickled(self) -> None:
        assert (task_of(stored()).args, task_of(stored()).kwargs) == (None, None)

    def test_without_a_priority_has_that_of_its_list(self) -> None:
        assert task_of(stored(properties={})).priority == 3


#: Texts of any characters, and of some that are written in several ways.
TEXTS = st.text(max_size=5) | st.text('ab.c/"\\é\nя务😀\x7f', max_size=6)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)


class TestAnythingElse:
    @pytest.mark.parametrize(
        "payload",
        [b"", b"\xac\xed\x00\x05java", b'"text"', b"[]", b"{}", b"{", b"\xff", b"[" * 100_000, b'{"properties": 1}'],
    )
    def test_is_shown_as_what_it_is(self, payload: bytes) -> None:
        task = task_of(payload)
        assert not task.is_task
        assert (task.id, task.name, task.args_text, task.queue, task.priority) == (None, None, None, "celery", 3)
        assert (task.size, task.due) == (len(payload), datetime(2030, 1, 1, tzinfo=timezone.utc))
        assert with_eta(payload, "2031-01-01", 1) == payload

    @given(st.dictionaries(st.sampled_from([*HEADERS, "x"]), JSON, max_size=6), JSON, JSON)
    def test_never_raises(self, headers: dict[str, Any], other: Any, more: Any) -> None:
        for payload in (
            stored(headers),
            stored(other),
            stored(headers, properties=other),
            stored(headers, **{"properties": {"priority": more}, "content-type": other}),
            json.dumps(other).encode(),
        ):
            task = task_of(payload)
            assert task.size == len(payload)
            assert (task.args, task.kwargs) == (None, None)
            assert "\n" not in repr(task)
            json.dumps(task.to_dict())
            assert task.stamps is not None

    @given(st.binary(), st.integers(-(2**80), 2**80))
    def test_of_any_bytes_and_time(self, payload: bytes, due_ms: int) -> None:
        task = task_of(payload, due_ms)
        assert task.due.tzinfo is timezone.utc
        repr(task)

    def test_marked_objects_in_headers_stay_as_they_are(self) -> None:
        """kombu makes objects of them, and raises on what it does not know."""
        marked = {"__type__": "never heard of", "__value__": 1}
        task = task_of(stored({**HEADERS, "id": marked, "more": marked}))
        assert task.id == json.dumps(marked)
        assert task.headers["more"] == marked


class TestAnotherEta:
    def test_is_all_that_changes(self) -> None:
        before = json.loads(stored())
        after = json.loads(with_eta(stored(), "2031-01-01T00:00:00+00:00", 7))
        before["headers"]["eta"] = "2031-01-01T00:00:00+00:00"
        before["properties"]["delayq_due"] = 7
        assert after == before

    def test_without_a_delayed_queue(self) -> None:
        """Then no worker must take it for one that has waited already."""
        after = json.loads(with_eta(stored(), None, None))
        assert after["headers"]["eta"] is None
        assert "delayq_due" not in after["properties"]

    @given(st.text(), st.dictionaries(st.text(), JSON, max_size=4))
    def test_body_and_headers_stay_what_they_are(self, body: str, headers: dict[str, Any]) -> None:
        payload = stored({**headers, "task": "t", "id": "i"}, body=body)
        once = with_eta(payload, "2031-01-01", 7)
        assert json.loads(once)["body"] == body
        assert with_eta(once, "2031-01-01", 7) == once
        kept = {key: value for key, value in json.loads(once)["headers"].items() if key != "eta"}
        assert repr(kept) == repr({k: v for k, v in json.loads(payload)["headers"].items() if k != "eta"})


class TestText:
    @pytest.mark.parametrize(
        ("text", "found"), [("42", True), ("unpaid", True), ("Unpaid", False), ("'why': ", True), ("42,){", False)]
    )
    def test_is_looked_for_in_the_arguments_as_they_are_shown(self, text: str, found: bool) -> None:
        assert Criteria(text=text).matches(task_of(stored())) is found
        assert not Criteria(text=text).matches(task_of(b"42 unpaid 'why': "))

    @pytest.mark.parametrize("value", [42, ["42"], {"42": 42}, None])
    def test_arguments_that_are_no_text_have_none(self, value: Any) -> None:
        """They are shown as JSON, which has many spellings."""
        assert not Criteria(text="42").matches(task_of(stored({**HEADERS, "argsrepr": value})))


class TestBody:
    def test_json_in_full(self) -> None:
        body = base64.b64encode(b'[["a"], {"b": 1}, null]').decode()
        assert task_of(stored(body=body, **{"content-type": "application/json"})).body == [["a"], {"b": 1}, None]

    @pytest.mark.parametrize("body", ["!", "bm8gSlNPTg==", 5, None, base64.b64encode(b"\xff" * 9).decode()])
    def test_what_is_no_json_is_none(self, body: Any) -> None:
        assert task_of(stored(body=body, **{"content-type": "application/json"})).body is None

    def test_nothing_else_is_decoded(self) -> None:
        assert task_of(stored()).body is None
        assert task_of(b"\xff").body is None


class TestMarks:
    """What a message of a task with this name holds, however its JSON was written."""

    #: Short escapes that JSON has; an escape of four digits does for every other character.
    SHORT = MappingProxyType(
        {'"': r"\"", "\\": r"\\", "/": r"\/", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    )

    def spelled(self, data: st.DataObject, text: str) -> str:
        """A text as some writer of JSON writes it."""
        spelled = ""
        for char in text:
            units = char.encode("utf-16-be", "surrogatepass")
            digits = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
            spellings = ["".join(rf"\u{four}" for four in digits), "".join(rf"\u{four.upper()}" for four in digits)]
            if char in self.SHORT:
                spellings.append(self.SHORT[char])
            if char >= " " and char not in '"\\' and not "\ud800" <= char <= "\udfff":
                spellings.append(char)
            spelled += data.draw(st.sampled_from(spellings))
        return spelled

    @given(data=st.data(), name=st.one_of(st.text(), st.text('ab.c/"\\é\n', min_size=1)))
    def test_are_in_every_spelling(self, data: st.DataObject, name: str) -> None:
        payload = f'{{"headers":{{"task":"{self.spelled(data, name)}","id":"1"}},"properties":{{}}}}'.encode()
        task = task_of(payload)
        marks = marks_of(task.name or "")
        assert not marks or any(mark in payload for mark in marks)

    @given(
        data=st.data(),
        around=st.tuples(TEXTS, TEXTS),
        text=TEXTS.filter(bool),
        header=st.sampled_from(["argsrepr", "kwargsrepr"]),
    )
    def test_of_arguments_are_in_every_spelling(
        self, data: st.DataObject, around: tuple[str, str], text: str, header: str
    ) -> None:
        spelled = self.spelled(data, f"{around[0]}{text}{around[1]}")
        payload = f'{{"headers":{{"{header}":"{spelled}"}},"properties":{{}}}}'.encode()
        if Criteria(text=text).matches(task_of(payload)):
            assert any(mark in payload for mark in marks_within(text))
        else:  # halves of a pair make a whole
            assert any("\ud800" <= char <= "\udfff" for char in text)

    @given(st.text(min_size=1))
    def test_of_arguments_are_few_and_not_empty(self, text: str) -> None:
        marks = marks_within(text)
        assert 1 <= len(marks) <= 32
        assert all(marks)

    @pytest.mark.parametrize("text", ["'Zoë'", "4711", "{'user': 47", "привет", "任务", "😀😀", '"', "\\", "/a/", "é"])
    @pytest.mark.parametrize("ensure_ascii", [False, True])
    def test_of_usual_arguments_are_in_no_message_without_them(self, text: str, ensure_ascii: bool) -> None:
        others = "('Zara', 2003, {'user': 89}, 'приз, ответ', '任 务', '😁', 'è')"
        payload = json.dumps({"argsrepr": others}, ensure_ascii=ensure_ascii).encode()
        assert not any(mark in payload for mark in marks_within(text))
        with_it = json.dumps({"argsrepr": others + text}, ensure_ascii=ensure_ascii).encode()
        assert any(mark in with_it for mark in marks_within(text))

    @given(value=st.recursive(st.none() | st.booleans() | st.floats() | st.integers(), st.lists))
    def test_are_none_for_what_may_be_no_text(self, value: Any) -> None:
        name = task_of(stored({**HEADERS, "task": value})).name
        assert name is None or marks_of(name) == ()

    def test_of_usual_names_are_in_no_usual_message_of_another_task(self) -> None:
        payload = stored({**HEADERS, "task": "shop.cancel_unpaid_order", "argsrepr": "('\\\\', 'é', '任务', '\"\\n')"})
        for name in ("shop.cancel_unpaid", "celery.backend_cleanup", "Shop-2.do:it"):
            assert not any(mark in payload for mark in marks_of(name)), name


class TestReprs:
    """Of one line, without arguments, which may be secret or long."""

    def test_of_a_task_and_a_page(self) -> None:
        task = task_of(stored({**HEADERS, "task": "a\nb"}))
        assert repr(task) == "<ScheduledTask 'the-id' 'a\\nb' due 2030-01-01T00:00:00+00:00 in 'celery'>"
        assert repr(Page((task, task), None)) == "<Page of 2 tasks, the last one>"
        assert repr(Page((task,), "cursor")) == "<Page of 1 task, more follow>"
        assert repr(task.entry).startswith(f"<Entry {task.entry.id.hex()} due 2030-01-01T00:00:00+00:00, ")

    def test_of_a_dead_letter(self) -> None:
        letter = DeadLetter("celery\x06\x163", NEW_YEAR, "0001", "not-a-message", b"\xff" * 1000)
        assert repr(letter) == "<DeadLetter '0001' not-a-message at 2030-01-01T00:00:00+00:00 in 'celery\\x06\\x163'>"
        assert repr(DeadPage((letter,), None)) == "<DeadPage of 1 dead letter, the last one>"

    def test_of_a_periodic_task(self) -> None:
        planned = NEW_YEAR.replace(year=2200)
        entry = PeriodicTask("report", "shop.report", {"every": 90}, queue="celery", next_run=planned)
        assert repr(entry) == (
            "<PeriodicTask 'report' 'shop.report' 'every 1m 30s': planned, "
            "next run 2200-01-01T00:00:00+00:00 in 'celery'>"
        )
        assert repr(PeriodicTask("a", "b", None)) == "<PeriodicTask 'a' 'b' '-': not seen by a planner>"

"""All keys of a queue are in one hash slot, or its name is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.cluster.names import check_name, is_tagged, keys_of, priority_list, queue_of, slot_of
from celery_delayq.queue.keys import QueueKeys

SEP = "\x06\x16"

#: Names with many braces, and any others.
names = st.one_of(st.text(alphabet="{}ab:", max_size=12), st.text())

BAD = ["a{b", "a}b", "}x", "{}x", "q{}y{z}", "{", "}", "{}", "a}", "{x", "{}{x}"]


def _lists(name: str, keyprefix: str, suffixes: Iterable[str]) -> set[str]:
    """Return the lists of a queue: for priority 0, and for others."""
    full = keyprefix + name
    found = {full}
    for suffix in suffixes:
        found.add(f"{keyprefix}{priority_list(name, suffix, keyprefix)}")
    return found


def _all_keys(name: str, keyprefix: str) -> set[str]:
    """Return more keys of a queue than `check_name` looks at, under the names that a channel gives them."""
    keys = set()
    for each in _lists(name, keyprefix, [f"{sep}{step}" for sep in (SEP, ":", "}", "{x}") for step in (3, 6, 9, 10)]):
        queue_keys = QueueKeys.of(each)
        keys.update(vars(queue_keys).values())
        keys.update(queue_keys.in_flight(consumer) for consumer in ("0123", "host@1"))
    return keys


@pytest.mark.parametrize(("queue", "suffix", "name"), [
    ("celery", f"{SEP}3", f"{{celery}}{SEP}3"),
    ("celery", "", "celery"),
    ("{shop}:q", f"{SEP}3", f"{{shop}}:q{SEP}3"),
    ("my:{shop}", f"{SEP}9", f"my:{{shop}}{SEP}9"),
    ("p:celery", f"{SEP}6", f"{{p:celery}}{SEP}6"),
])  # fmt: skip
def test_priority_lists_share_the_slot_of_their_queue(queue: str, suffix: str, name: str) -> None:
    assert priority_list(queue, suffix) == name
    assert slot_of(name) == slot_of(queue)


@pytest.mark.parametrize(("name", "tagged"), [
    ("celery", False), ("", False), ("{shop}:q", True), ("q{a}{b}", True), ("{{a}", True), ("a}{b}", True),
    *((name, False) for name in BAD),
])  # fmt: skip
def test_a_hash_tag_is_what_redis_takes_for_one(name: str, tagged: bool) -> None:
    assert is_tagged(name) is tagged


@pytest.mark.parametrize("name", BAD)
def test_names_whose_keys_would_be_in_different_slots_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="different hash slots") as error:
        check_name(name)
    assert repr(name) in str(error.value)
    with pytest.raises(ConfigurationError, match="'p:'"):
        check_name(name, "p:")


def test_an_empty_name_needs_a_prefix() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        check_name("")
    check_name("", "p:")


def test_a_prefix_can_mend_a_name_or_spoil_it() -> None:
    check_name("a}b", "{shop}:")
    check_name("a{b", "{shop}:")
    with pytest.raises(ConfigurationError, match="different hash slots"):
        check_name("celery", "a{b:")


@given(names, st.sampled_from(["", "p:", "{shop}:", "a{b", "a}b", "{}"]))
@example("{{a}", "")
@example("a}{b}", "")
@example("{}", "{")
@example("b}", "{")
def test_any_name_is_refused_or_has_all_keys_in_one_slot(name: str, keyprefix: str) -> None:
    try:
        check_name(name, keyprefix)
    except ConfigurationError:
        assert {"{", "}"} & set(keyprefix + name) or not keyprefix + name
    else:
        assert len({slot_of(key) for key in _all_keys(name, keyprefix)}) == 1


@given(names, st.sampled_from(["", "p:", "{shop}:", "a{b", "a}b", "{}"]))
def test_the_full_name_gives_the_same_answer(name: str, keyprefix: str) -> None:
    slots = "different hash slots"
    assert _is_refused(name, keyprefix, slots) is _is_refused(keyprefix + name, "", slots)


@pytest.mark.parametrize(("name", "keyprefix", "other"), [
    ("{tasks}", "", "tasks"), ("{p:tasks}", "p:", "tasks"), ("{p:}", "p:", ""),
])  # fmt: skip
def test_names_whose_lists_would_be_those_of_another_queue_are_refused(name: str, keyprefix: str, other: str) -> None:
    with pytest.raises(ConfigurationError, match=f"those of the queue {other!r}"):
        check_name(name, keyprefix)
    check_name(other, keyprefix or "p:")


@pytest.mark.parametrize(("name", "keyprefix"), [("{tasks}", "p:"), ("{tasks}", "{p}:"), ("{{p}:tasks}", "{p}:")])
def test_names_that_are_all_braces_are_good_beside_a_prefix(name: str, keyprefix: str) -> None:
    check_name(name, keyprefix)


@given(names, names, st.sampled_from(["", "p:", "{shop}:", "a}"]))
@example("tasks", "{tasks}", "")
@example("tasks", "{p:tasks}", "p:")
def test_no_two_queues_share_a_list(one: str, other: str, keyprefix: str) -> None:
    if one == other or _is_refused(one, keyprefix) or _is_refused(other, keyprefix):
        return
    assert not _lists(one, keyprefix, (f"{SEP}3",)) & _lists(other, keyprefix, (f"{SEP}3",))


@given(names, st.sampled_from(["", "p:", "{shop}:", "a}"]))
@example("{tasks}", "p:")
@example("{tasks}", "{shop}:")
@example("{{shop}:tasks}", "{shop}:")
@example("", "p:")
def test_a_list_tells_its_queue(name: str, keyprefix: str) -> None:
    if not _is_refused(name, keyprefix):
        (found,) = _lists(name, keyprefix, (SEP,)) - {f"{keyprefix}{name}"}
        assert queue_of(found.removeprefix(keyprefix).removesuffix(SEP), keyprefix) == name


@given(st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), min_size=1))
def test_names_without_braces_are_never_refused(name: str) -> None:
    check_name(name)
    check_name(name, "p:")
    assert set(keys_of(name)) <= _all_keys(name, "") | {QueueKeys.of(name).in_flight("consumer")} | {
        QueueKeys.of(priority_list(name, f"{SEP}3")).in_flight("consumer")
    }


def _is_refused(name: str, keyprefix: str, why: str = "") -> bool:
    try:
        check_name(name, keyprefix)
    except ConfigurationError as error:
        return why in str(error)
    return False

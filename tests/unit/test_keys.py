"""Names of keys: Redisson's where Redis holds what Redisson knows, all in the slot of the list."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from celery_delayq.queue.keys import QueueKeys, companion, list_of, registry


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("celery", "redisson_delay_queue:{celery}"),
        ("celery\x06\x163", "redisson_delay_queue:{celery\x06\x163}"),
        ("shop:{eu}:orders", "redisson_delay_queue:shop:{eu}:orders"),
        ("half{open", "redisson_delay_queue:half{open"),
        ("closed}", "redisson_delay_queue:{closed}}"),
        ("", "redisson_delay_queue:{}"),
    ],
)
def test_braces_are_added_unless_there_is_one(name: str, expected: str) -> None:
    assert companion("redisson_delay_queue", name) == expected


def test_every_name_of_a_queue() -> None:
    """Golden: Redisson and older versions of this package look for these."""
    assert dataclasses.asdict(QueueKeys.of("shop.celery", db=3)) == {
        "queue": "shop.celery",
        "timeout_set": "redisson_delay_queue_timeout:{shop.celery}",
        "delay_list": "redisson_delay_queue:{shop.celery}",
        "channel": "redisson_delay_queue_channel:{shop.celery}",
        "index": "delayq:index:{shop.celery}",
        "repeated": "delayq:repeated:{shop.celery}",
        "dead": "delayq:dead:{shop.celery}",
        "records": "delayq:dead_records:{shop.celery}",
        "failed": "delayq:failed:{shop.celery}",
        "failed_records": "delayq:failed_records:{shop.celery}",
        "transferrer": "delayq:transfer:{shop.celery}",
        "transferrer_channel": "delayq:transfer_channel:3:{shop.celery}",
        "consumers": "delayq:consumers:{shop.celery}",
        "schedule": "delayq:schedule:{shop.celery}",
        "holds": "delayq:unique:{shop.celery}",
        "taken": "delayq:taken:{shop.celery}",
        "metrics": "delayq:metrics:{shop.celery}",
    }


#: Names for which braces can do their work: no "}" before the first "{", and something in between.
SHARDABLE = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="{}"), min_size=1),
    st.from_regex(r"\A[a-z:]{0,5}\{[a-z]{1,5}\}[a-z:]{0,5}\Z"),
)


@given(SHARDABLE)
def test_all_keys_of_a_queue_are_in_the_slot_of_its_list(name: str) -> None:
    names = dataclasses.asdict(QueueKeys.of(name)).values()
    assert {key_slot(key.encode()) for key in names} == {key_slot(name.encode())}


@given(st.text("ab{}"), st.text("ab{}"))
def test_no_two_queues_share_a_key_except_one_that_is_the_other_in_braces(one: str, other: str) -> None:
    """Redisson's rule has it so: the lists `q` and `{q}` cannot both have a delayed queue."""
    shared = set(dataclasses.astuple(QueueKeys.of(one))[1:]) & set(dataclasses.astuple(QueueKeys.of(other))[1:])
    same = one == other or one == f"{{{other}}}" or (other == f"{{{one}}}")
    if "{" in one and "{" in other:
        same = one == other
    assert bool(shared) == same


def test_the_registry_takes_the_prefix_of_kombu() -> None:
    assert registry() == "delayq:queues"
    assert registry("shop.") == "shop.delayq:queues"


@pytest.mark.parametrize(
    "name", ["celery", "celery\x06\x163", "{slot}jobs", "a{b}c", "{a}b{c}", "a}b", "{", "a{", "{}"]
)
def test_the_list_is_found_by_its_companion(name: str) -> None:
    assert list_of("prefix", companion("prefix", name)) == name


@pytest.mark.parametrize("key", ["prefix:plain", "other:{q}", "prefix:", "prefix"])
def test_what_is_no_companion_has_no_list(key: str) -> None:
    assert list_of("prefix", key) is None

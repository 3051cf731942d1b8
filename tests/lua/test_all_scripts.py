"""What holds for every script: it compiles, and its header, its body and its wrapper agree."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import ReadOnlyError

from celery_delayq.queue import codec, holds, measuring, ready, scripts, set_aside
from celery_delayq.queue.call import Attempt, Call, load, run_each, script_of
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import QueueKeys, ScheduleKeys, registry
from celery_delayq.schedule import scripts as schedule_scripts
from celery_delayq.schedule.records import Seen
from examples.private_redis import PrivateRedis

NAMES = sorted(
    file.name.removesuffix(".lua") for file in files("celery_delayq.queue").joinpath("lua").iterdir() if file.is_file()
)

#: The keys of scripts that work on those that belong to no queue.
WITHOUT_QUEUE = {
    "record": ScheduleKeys.of(),
    "announce": ScheduleKeys.of(),
    "register": registry(),
    "forget": registry(),
}

#: Whose keys are those of several queues in one slot.
SEVERAL_QUEUES = {"renew": [QueueKeys.of("{q}"), QueueKeys.of("{q}:3")]}

#: The queue of those that may concern another list of it.
IN_A_SLOT = {"offer_unique": QueueKeys.of("{q}"), "move": QueueKeys.of("{q}")}

ATTEMPT = Attempt("publisher", bytes(16))

#: How to call each wrapper, and a reply that it understands.
CALLS: dict[str, tuple[dict[str, Any], Any]] = {
    "offer": (
        {"due_ms": 1, "message_key": bytes(16), "payload": b"", "mirrored": False, "attempt": ATTEMPT},
        [b"1", 1],
    ),
    "publish": ({"message": b"", "attempt": ATTEMPT}, 1),
    "offer_fetched": (
        {
            "consumer": "me",
            "message": b"",
            "due_ms": 1,
            "message_key": bytes(16),
            "payload": b"",
            "mirrored": False,
            "holder": holds.Holder.of("key", "id"),
        },
        [1, 1],
    ),
    "offer_many": ({"messages": [], "mirrored": False}, 1),
    "offer_unique": (
        {
            "claim": holds.Claim("key", "due", 1, "keep"),
            "task_id": "id",
            "due_ms": 1,
            "payload": b"",
            "mirrored": False,
            "pace": holds.Pace("key", 1000),
            "attempt": ATTEMPT,
            "there": QueueKeys.of("{q}:3"),
        },
        [b"stored", 1],
    ),
    "offer_throttled": (
        {
            "pace": holds.Pace("key", 1000),
            "due_ms": 1,
            "message_key": bytes(16),
            "payload": b"",
            "mirrored": False,
            "attempt": ATTEMPT,
        },
        [b"1", 1],
    ),
    "hold": ({"holders": [], "what": "done"}, 0),
    "acknowledge": (
        {"consumer": "me", "message": b"", "holder": holds.Holder(bytes(16), bytes(16)), "what": "done"},
        1,
    ),
    "transfer": (
        {"limit": 1, "transferrer": "", "grace_ms": 0, "lead_ms": 0},
        [0, 0, b"", b"1000", b"0", b"", b""],
    ),
    "cancel": ({"message_key": bytes(16)}, [0, 0]),
    "resign": ({"transferrer": "me"}, 0),
    "find": ({"message_key": bytes(16)}, [b""]),
    "page": ({"due_ms": 0, "last_due_ms": None, "limit": 1}, [0]),
    "remove": ({"entries": []}, []),
    "release": ({"messages": []}, []),
    "restore": ({"due_ms": 1, "message_key": bytes(16), "payload": b"", "mirrored": False}, 1),
    "register": ({"names": []}, 1),
    "forget": ({"used": []}, 1),
    "amend": ({"due_ms": 1, "messages": []}, []),
    "move": ({"there": QueueKeys.of("{q}:3"), "due_ms": 1, "entry": b"", "payload": b""}, [1, 0]),
    "renew": ({"consumer": "me", "lease_ms": 1, "join": True}, [b"1000", [1], [1]]),
    "fetch": ({"consumer": "me", "limit": 1}, []),
    "purge": ({"limit": 1, "mark": b""}, [0]),
    "ready": ({"end": "newest", "skip": 0, "taken": 0, "limit": 1}, [0, 0, 0, 0]),
    "take_back": ({"messages": []}, []),
    "put_back": ({"consumer": "me", "messages": []}, 0),
    "requeue_dead": ({"letters": []}, 0),
    "keep": ({"record": b"", "most": 1, "kept_ms": 1}, 0),
    "recover": (
        {"consumer": "you", "score": b"1", "gone": True, "alive_channel": "here", "messages": []},
        [1, [], 0, b""],
    ),
    "leave": ({"consumer": "me"}, 1),
    "count": ({"now_s": 1000, "numbers": {}}, 0),
    "spread": ({"edges_ms": []}, []),
    "measure": ({"spans_ms": []}, [b"1000", 0, 0, 0, b"", 0, b"", [b"consumer", b"1"], [], [b"what", b"1"], 0]),
    "plan": ({"step": schedule_scripts.Step("e", "q", Seen(), b"s")}, [1, b"1000", b"s", b"0", 0]),
    "record": ({"changes": []}, [1]),
    "announce": ({"app": "a", "configuration": "c", "lifetime_ms": 1}, [b"c", b"1000", b"1000", b"1000"]),
}

#: Commands without a key, or with a channel instead.
NO_KEY = {"TIME", "PUBLISH", "PUBSUB"}


def header_and_body(name: str) -> tuple[str, str]:
    """Split a script at the end of the comment with which it begins; the body has no comments."""
    text = load(name).text
    assert text.startswith(f"--[[\n{name}: ")
    header, _, body = text.partition("]]\n")
    return header, re.sub(r"--.*", "", body)


def indices(table: str, text: str) -> list[int]:
    """Return the indices with which KEYS or ARGV occur, each once, in order."""
    return sorted({int(index) for index in re.findall(rf"{table}\[(\d+)\]", text)})


def names_of(table: str, body: str) -> list[str]:
    """Return the locals for the elements of KEYS or ARGV; an element without one is `KEYS[1]`, for example."""
    names = {index: f"{table}[{index}]" for index in indices(table, body)}
    for left, right in re.findall(r"local ([\w\s,]+?)\s*=\s*(.*(?:KEYS|ARGV)\[\d.*)", body):
        for name, value in zip(left.split(","), right.split(","), strict=True):
            for index in indices(table, value):
                names[index] = name.strip()
    each = re.findall(rf"for _, (\w+) in ipairs\({table}\)", body)
    return [*(names[index] for index in sorted(names)), *each]


def call_of(name: str) -> Call[Any]:
    """Return the call that the wrapper of a script makes."""
    wrapper = next(
        getattr(module, name)
        for module in (scripts, holds, measuring, ready, set_aside, schedule_scripts)
        if hasattr(module, name)
    )
    keys = WITHOUT_QUEUE.get(name) or SEVERAL_QUEUES.get(name) or IN_A_SLOT.get(name) or QueueKeys.of("q")
    call: Call[Any] = wrapper(keys, **CALLS[name][0])
    assert call.script is load(name)
    return call


def test_there_is_a_call_for_each() -> None:
    assert sorted(CALLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_compiles(any_client: redis.Redis, name: str) -> None:
    script = load(name)
    assert any_client.script_load(script.text) == script.sha


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_body_and_wrapper_have_the_inputs_of_the_header(name: str, table: str) -> None:
    call = call_of(name)
    passed = {"KEYS": call.keys, "ARGV": call.args}
    header, body = header_and_body(name)
    documented = re.findall(rf"^{table}\[(\d+)\] \w", header, re.MULTILINE)
    numbers = list(range(1, len(passed[table]) + 1))
    if table == "KEYS" and name in SEVERAL_QUEUES:
        assert re.search(r"^KEYS    \w", header, re.MULTILINE)
        numbers = []
    assert [int(index) for index in documented] == numbers
    assert indices(table, body) == numbers


@pytest.mark.parametrize("name", NAMES)
def test_touches_no_other_keys(name: str) -> None:
    """Every key comes in KEYS, so that Redis Cluster and ACLs can know them all."""
    _, body = header_and_body(name)
    keys = names_of("KEYS", body)
    called = re.findall(r"redis\.p?call\(\s*'?(\w+)'?(?:,\s*([^,)]*))?", body)
    assert called
    assert len(called) == len(re.findall(r"redis\.p?call", body))
    for command, argument in called:
        chosen = argument.split(" and ")[-1].split(" or ")  # of `condition and one or other`
        assert command in NO_KEY or set(chosen) <= set(keys), (command, argument)


@pytest.mark.parametrize("name", NAMES)
def test_its_wrapper_understands_its_reply(name: str) -> None:
    call_of(name).read(CALLS[name][1])


@pytest.mark.parametrize("name", NAMES)
def test_its_keys_are_in_one_hash_slot(name: str) -> None:
    assert len({key_slot(key.encode()) for key in call_of(name).keys}) == 1


def test_the_scripts_read_entries_as_the_codec_writes_them(any_client: redis.Redis) -> None:
    constants = {
        "ID_SIZE": codec.ID_SIZE,
        "KEY_SIZE": codec.MESSAGE_KEY_SIZE,
        "PLACE_SIZE": codec.PLACE_SIZE,
        "KIND": codec.KIND,
        "MIRRORED": codec.MIRRORED,
        "REPEATED": codec.REPEATED,
        "UNIQUE": codec.UNIQUE,
    }
    entry = codec.pack(codec.OfferId(1234567, b"k" * 16, mirrored=True, repeated=True).to_bytes(), b"payload")
    read = script_of(
        "read",
        "-- include: entry_format\n"
        f"local constants = {{{', '.join(constants)}}}\n"
        "local offered = struct.unpack('>I7', ARGV[1], OFFERED_AT)\n"
        "local flags = flags_of(ARGV[1])\n"
        "return {constants, offered, flags, message_key_of(ARGV[1]), string.sub(ARGV[1], PAYLOAD_AT),"
        " is_mirrored(flags) and 1 or 0, flags_of(ARGV[2]) or 'other'}",
    )
    of_redisson = codec.pack(b"8 bytes.", b"payload")
    assert Call(read, (), (entry, of_redisson), list).run(any_client) == [
        list(constants.values()),
        1234567,
        codec.MIRRORED | codec.REPEATED,
        b"k" * 16,
        b"payload",
        1,
        b"other",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_format_of_entries_stands_in_one_place(name: str) -> None:
    _, body = header_and_body(name)
    for constant in ("ID_SIZE", "KIND", "PAYLOAD_AT"):
        assert len(re.findall(rf"local [A-Z_, ]*\b{constant}\b[A-Z_, ]* =", body)) <= 1
    assert not re.search(
        r"\b(208|209|21[0-3]|0xD\d)\b", body.replace("local KIND, MIRRORED, REPEATED, UNIQUE = 208", "")
    )


def test_the_batch_limit_is_below_what_unpack_can_do() -> None:
    _, body = header_and_body("transfer")
    (slice_size,) = re.findall(r"local MAX_SLICE = (\d+)", body)
    assert int(slice_size) <= scripts.MAX_BATCH_SIZE < 8000


def test_a_replica_is_named_by_its_error_however_the_server_wraps_it(any_redis_server: PrivateRedis) -> None:
    """Redis 6.2 reports READONLY of a command within a script as an error of the script."""
    with any_redis_server.client() as client:
        client.replicaof("127.0.0.1", "1")
        try:
            queue = DelayedQueue(client, "q")
            with pytest.raises(ReadOnlyError):
                queue.offer(b"", countdown=1.0)
            call = scripts.offer(queue.keys, due_ms=1, message_key=b"1", payload=b"", mirrored=False)
            (reply,) = run_each(client, [call])
            assert isinstance(reply, ReadOnlyError)
        finally:
            client.replicaof("NO", "ONE")

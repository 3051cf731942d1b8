"""Records and states: what cannot be read is one kind of error, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_delayq.schedule.records import Record, State

JUNK = [b"", b"{", b"5", b"null", b"[]", b"{}", b"\xff\xfe", b"\x80\x04\x95", b"[" * 100_000, b"9" * 5000]

RECORD: dict[str, Any] = {"fingerprint": "f", "since_ms": 1, "definition": {}}


@pytest.mark.parametrize("raw", JUNK, ids=lambda raw: raw[:10].decode("latin-1"))
@pytest.mark.parametrize("kind", [Record, State])
def test_junk_is_refused(kind: type[Record | State], raw: bytes) -> None:
    with pytest.raises(ValueError, match="of a periodic task"):
        kind.parse(raw)


@pytest.mark.parametrize(
    "field",
    [
        {"earlier": 5},
        {"earlier": None},
        {"earlier": "ab"},
        {"last": None},
        {"queue": {}},
        {"app": []},
        {"paused": "yes"},
        {"definition": []},
        {"since_ms": 10**15},
        {"since_ms": -1},
    ],
    ids=str,
)
def test_a_record_with_a_wrong_field_is_refused(field: dict[str, Any]) -> None:
    assert Record.parse(json.dumps(RECORD).encode())
    with pytest.raises(ValueError, match="of a periodic task"):
        Record.parse(json.dumps({**RECORD, **field}).encode())


@pytest.mark.parametrize(
    "fields", [[10**15], [None, "", 10**15], [None, 5], [None, "", None, "x"], [None, "", None, 0, 0, False]], ids=str
)
def test_a_state_with_a_wrong_field_is_refused(fields: list[Any]) -> None:
    assert State.parse(b'["f", "p", null]')
    with pytest.raises(ValueError, match="of a periodic task"):
        State.parse(json.dumps(["f", "p", *fields]).encode())

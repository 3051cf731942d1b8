"""When a message is due: what a Celery worker would make of its eta."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.queue.clock import ServerClock
from celery_delayq.transport.eta import due_ms_of, parse_eta, seconds_until

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TIMES = st.datetimes(
    datetime.fromisoformat("1900-01-02"),
    datetime.fromisoformat("9999-12-30"),
    timezones=st.none() | st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


#: In ASCII, or Hypothesis writes all digits that there are.
_LIKE_A_TIME = re.compile(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,7})?)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def eta_of_worker(eta: object, timezone_name: str = "UTC") -> datetime:
    """Return what a Celery worker in a time zone makes of an eta."""
    app = Celery(set_as_current=False)
    app.conf.timezone = timezone_name

    @app.task(name="shop.cancel", shared=False)
    def cancel() -> None: ...

    headers = {"id": "1", "task": "shop.cancel", "eta": eta}
    message = Message(headers=headers, properties={}, delivery_info={})
    request = Request(message, app=app, task=cancel, headers=headers, body=([], {}, {}), decoded=True)
    found: datetime = request.eta
    return found


def to_ms(when: datetime) -> int:
    """Return the first whole millisecond that is not before `when`."""
    return -((EPOCH - when) // timedelta(milliseconds=1))


def message(eta: object, **headers: object) -> dict[str, Any]:
    """Return a message of Celery's protocol 2, as the transport gets it."""
    return {"headers": {"task": "shop.cancel", "id": "1", "eta": eta, **headers}}


class TestParseEta:
    @given(TIMES)
    def test_a_time_that_was_written_by_isoformat(self, when: datetime) -> None:
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        assert parse_eta(when.isoformat(), "t") == to_ms(aware)

    @given(TIMES)
    def test_a_datetime(self, when: datetime) -> None:
        """kombu's memory and pickle paths may leave one."""
        assert parse_eta(when, "t") == parse_eta(when.isoformat(), "t")

    @pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
    @pytest.mark.parametrize(
        "eta",
        [
            "2030-07-01T12:00:00",
            "2030-07-01T12:00:00.123456",
            "2030-07-01T12:00:00+02:00",
            "2030-07-01T12:00:00Z",
            "2030-07-01 12:00",
            "20300701T120000",
            "20300701T1200Z",
            "2030-07-01",
            "2030-07",
            "2030-W27-1T12:00",
            "2030-07-01T12:00:00,5",
            "2030-07-01T24:00",
            "2030-07-01T24:00:00",
            "2030-07-01T12:00:00+0530",
            "2030-07-01T12:00:00-05",
            datetime.fromisoformat("2030-07-01T12:00"),
            datetime(2030, 7, 1, 12, tzinfo=timezone(timedelta(hours=-8))),
        ],
    )
    def test_is_what_a_worker_takes_it_for(self, eta: object, zone: str) -> None:
        assert parse_eta(eta, "t") == to_ms(eta_of_worker(eta, zone))

    @pytest.mark.parametrize(
        "eta",
        [
            "soon",
            "30",
            "2030-13-01T00:00:00",
            "2030-02-30T00:00:00",
            "2030-07-01T25:00:00",
            "10000-01-01T00:00:00",
            "2030-07-01T12:00:00+25:00",
            "2030-07-01T12:00:00+00:60",  # Python reads these four, workers do not
            "2030-07-01000-0060",
            "20300701000000000",
            "2030070100000.0",
            "\ud800",
            "٢٠٣٠",
            1893456000,
            1.5,
            b"2030-07-01T12:00:00",
            {"year": 2030},
            ["2030-07-01"],
            True,
        ],
    )
    def test_what_is_no_time_is_refused_with_the_name_of_the_task(self, eta: object) -> None:
        with pytest.raises(InvalidEta, match=r"task shop\.cancel must be a datetime"):
            parse_eta(eta, "shop.cancel")

    @given(st.text() | st.from_regex(_LIKE_A_TIME, fullmatch=True))
    def test_a_text_is_refused_or_is_the_time_that_a_worker_takes_it_for(self, text: str) -> None:
        try:
            found = parse_eta(text, "t")
        except InvalidEta:
            return
        assert found == to_ms(eta_of_worker(text))

    @pytest.mark.parametrize("eta", ["soon", "2030-13-01T00:00:00", 1893456000])
    def test_a_worker_refuses_such_an_eta_as_well(self, eta: object) -> None:
        with pytest.raises(InvalidTaskError):
            eta_of_worker(eta)

    @given(st.datetimes(timezones=st.just(UTC)))
    def test_never_before_the_eta_and_less_than_a_ms_after_it(self, when: datetime) -> None:
        after = timedelta(milliseconds=parse_eta(when, "t")) - (when - EPOCH)
        assert timedelta(0) <= after < timedelta(milliseconds=1)


class TestDueMsOf:
    def test_the_future(self) -> None:
        when = datetime.now(UTC) + timedelta(days=3652)
        assert due_ms_of(message(when.isoformat())) == to_ms(when)

    def test_the_last_moment_there_is(self) -> None:
        assert due_ms_of(message("9999-12-31T23:59:59.999999+00:00")) == 253402300800000

    def test_beyond_the_last_moment_in_utc(self) -> None:
        """Its digits end with the year 9999, which west of Greenwich is later."""
        due_ms = due_ms_of(message("9999-12-31T23:59:59-14:00"))
        assert due_ms == 253402300799000 + 14 * 3_600_000

    @pytest.mark.parametrize("eta", [None, "", 0])
    def test_no_eta_is_now(self, eta: object) -> None:
        assert due_ms_of(message(eta)) is None

    def test_the_past_is_now(self) -> None:
        assert due_ms_of(message("1999-12-31T23:59:59")) is None
        assert due_ms_of(message("0001-01-01T00:00:00+14:00")) is None

    def test_the_present_is_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "time", lambda: 1893456000.0)
        assert due_ms_of(message("2030-01-01T00:00:00")) is None
        assert due_ms_of(message("2030-01-01T00:00:00.000001")) == 1893456000001

    def test_an_eta_that_is_no_time_is_refused(self) -> None:
        with pytest.raises(InvalidEta, match="'soon'"):
            due_ms_of(message("soon"))

    @pytest.mark.parametrize(
        "no_task",
        [
            {},
            {"headers": None},
            {"headers": {}},
            {"headers": {"eta": "2999-01-01T00:00:00"}},
            {"headers": {"eta": "2999-01-01T00:00:00", "task": "t"}},
            {"headers": {"eta": "2999-01-01T00:00:00", "id": "1"}},
            {"body": {"task": "t", "id": "1", "eta": "2999-01-01T00:00:00"}, "headers": {}},
        ],
    )
    def test_what_is_not_of_protocol_2_is_now(self, no_task: dict[str, Any]) -> None:
        """Protocol 1 has its eta in the body, which is not ours to read: a worker holds it."""
        assert due_ms_of(no_task) is None


class Loop:
    """What is asked of a `TransferLoop`. If it knows the clock of the server, that is ahead of ours by some seconds."""

    def __init__(self, ahead_s: float | None) -> None:
        self._clock = ServerClock()
        if ahead_s is not None:
            now = time.monotonic()
            self._clock.observe(round((time.time() + ahead_s) * 1_000_000), now, now)

    def seconds_until_past(self, server_ms: float) -> float:
        return self._clock.seconds_until_past(server_ms, 0.0)


def loop_that_knows(ahead_s: float | None = None) -> Loop:
    return Loop(ahead_s)


class TestSecondsUntil:
    """This process's own clock may be wrong; those of other nodes of a cluster are more to be trusted."""

    DUE_S = 100.0

    def left_s(self, *loops: Loop | None) -> float:
        first, *others = loops
        return seconds_until((time.time() + self.DUE_S) * 1000, first, others)

    def test_by_the_clock_of_the_server(self) -> None:
        assert self.left_s(loop_that_knows(60), loop_that_knows(30)) == pytest.approx(40, abs=1)

    @pytest.mark.parametrize("first", [None, loop_that_knows()], ids=["no loop", "no clock"])
    def test_by_the_clock_of_another_node(self, first: Loop | None) -> None:
        assert self.left_s(first, loop_that_knows(), loop_that_knows(60)) == pytest.approx(40, abs=1)

    def test_by_its_own_clock(self) -> None:
        assert self.left_s(None, loop_that_knows()) == pytest.approx(100, abs=1)

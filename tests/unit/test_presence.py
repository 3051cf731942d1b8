"""Presence: who is absent and silent for long is gone, unless somebody knows better."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from celery_delayq.fetching.presence import Gone, Look, Presence

PATIENCE_S = 6.0
NOTHING = Look({}, set())

#: Leases of another consumer, before and after it has renewed them.
OLD, NEW = {"q": b"1000"}, {"q": b"2000"}


@pytest.fixture
def running() -> dict[str, bool]:
    """Processes of which it is known whether they run."""
    return {}


@pytest.fixture
def presence(running: dict[str, bool]) -> Presence:
    return Presence(PATIENCE_S, running.get)


def look(presence: Presence, at: float, *alive: str, absent: Mapping[str, Mapping[str, bytes]] | None = None) -> Look:
    return presence.look(set(alive), absent or {}, at)


class TestAbsent:
    def test_and_silent_for_long_is_gone(self, presence: Presence) -> None:
        assert look(presence, 0, "one") == NOTHING
        assert look(presence, 10, absent={"one": OLD}) == Look({}, {"one"})
        assert look(presence, 15.9, absent={"one": OLD}) == NOTHING
        assert presence.look_at == 16
        assert look(presence, 16, absent={"one": OLD}) == Look({"one": Gone(OLD, False)}, set())

    def test_for_a_moment_is_not(self, presence: Presence) -> None:
        for at in range(0, 60, 4):
            assert look(presence, at, absent={"one": OLD}).gone == {}
            assert look(presence, at + 2, "one") == NOTHING

    @pytest.mark.parametrize("leases", [NEW, {"r": b"1000"}], ids=["renewed", "left a list"])
    def test_and_not_silent_is_not(self, presence: Presence, leases: dict[str, bytes]) -> None:
        look(presence, 0, absent={"one": OLD})
        assert look(presence, 6, absent={"one": leases}) == Look({}, {"one"})
        assert look(presence, 11, absent={"one": leases}) == NOTHING
        assert look(presence, 12, absent={"one": leases}).gone == {"one": Gone(leases, False)}

    def test_is_gone_from_all_lists(self, presence: Presence) -> None:
        """Also from one that was joined meanwhile."""
        look(presence, 0, absent={"one": OLD})
        both = {**OLD, "r": b"5"}
        assert look(presence, 6, absent={"one": both}).gone == {"one": Gone(both, False)}

    def test_without_a_lease_has_left_in_order(self, presence: Presence) -> None:
        look(presence, 0, "one", "two")
        presence.known.add("three")
        look(presence, 1, "two", absent={"three": OLD})
        assert presence.known == {"two", "three"}
        look(presence, 2, "two")
        assert presence.known == {"two"}
        assert presence.look_at == math.inf

    def test_ones_are_judged_each_for_itself(self, presence: Presence) -> None:
        look(presence, 0, absent={"one": OLD})
        look(presence, 3, absent={"one": OLD, "two": OLD})
        assert presence.look_at == 6
        assert look(presence, 6, absent={"one": OLD, "two": OLD}).gone.keys() == {"one"}
        assert presence.look_at == 9


class TestKnown:
    def test_to_have_ended_is_gone_a_moment_later(self, presence: Presence, running: dict[str, bool]) -> None:
        running["one"] = False
        assert look(presence, 0, absent={"one": OLD}) == NOTHING
        assert presence.look_at == 1
        assert look(presence, 1, absent={"one": OLD}) == Look({"one": Gone(OLD, True)}, set())

    def test_to_run_is_not_gone_until_it_ends(self, presence: Presence, running: dict[str, bool]) -> None:
        running["one"] = True
        for at in range(100):
            assert look(presence, at, absent={"one": OLD}) == NOTHING
        assert presence.look_at == math.inf
        running["one"] = False
        assert look(presence, 100, absent={"one": OLD}).gone == {"one": Gone(OLD, True)}

    def test_to_others_who_vouch_for_it_is_asked_for_again(self, presence: Presence) -> None:
        for at in range(0, 60, 5):
            assert look(presence, at, absent={"one": OLD}) == Look({}, {"one"})
            presence.vouch("one", at)
        presence.vouch("nobody", 59)
        assert look(presence, 60, absent={"one": OLD}) == Look({}, {"one"})
        assert look(presence, 66, absent={"one": OLD}).gone == {"one": Gone(OLD, False)}


class TestWhoseLeaseHasEnded:
    @pytest.mark.parametrize(("at_work", "verdict"), [(True, "keep"), (False, "take")])
    def test_keeps_its_messages_if_it_is_seen_at_work(self, at_work: bool, verdict: str) -> None:
        presence = Presence(PATIENCE_S, lambda id: True, lambda id: at_work)
        assert [presence.judge("one", now) for now in range(100)] == [verdict] * 100

    @pytest.fixture
    def presence(self) -> Presence:
        """It is in another place."""
        return Presence(PATIENCE_S, lambda id: None, lambda id: None)

    def test_loses_them_if_nobody_answers_for_it(self, presence: Presence) -> None:
        assert [presence.judge("one", now) for now in (0, 0.5, 0.9, 1, 20)] == ["ask", "wait", "wait", "take", "take"]
        assert presence.judge("two", 20) == "ask"

    def test_keeps_them_as_long_as_somebody_does(self, presence: Presence) -> None:
        for at in range(0, 300, 31):
            assert presence.judge("one", at) == "ask"
            presence.vouch("one", at + 0.5)
            assert {presence.judge("one", at + later) for later in (0.5, 1, 29)} == {"keep"}
        assert [presence.judge("one", now) for now in (310, 311)] == ["ask", "take"]

    def test_loses_them_if_it_is_suspended(self, presence: Presence) -> None:
        assert presence.judge("one", 0) == "ask"
        presence.vouch("one", 0.5, is_at_work=False)
        assert presence.judge("one", 1) == "take"

"""Counters: no count is lost among threads, and none is given out again once it is settled."""

from __future__ import annotations

import sys
import threading

import pytest

from celery_delayq.metrics.counters import Counters


@pytest.fixture
def _frequent_switches() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_frequent_switches")
def test_threads_count_at_once_while_another_settles() -> None:
    counters, each, settled = Counters(), 5_000, 0
    threads = [threading.Thread(target=lambda: [counters.add("q", "x") for _ in range(each)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or counters.pending():
        pending = counters.pending().get("q", {})
        counters.settle("q", pending)
        settled += pending.get("x", 0)
    assert settled == 4 * each


def test_what_is_not_settled_is_given_out_again() -> None:
    counters = Counters()
    counters.add("q", "x", 3)
    counters.add("q", "y")
    counters.add("other", "x")
    assert counters.pending() == {"q": {"x": 3, "y": 1}, "other": {"x": 1}}
    counters.settle("q", {"x": 3})
    counters.add("q", "x")
    assert counters.pending() == {"q": {"x": 1, "y": 1}, "other": {"x": 1}}


@pytest.mark.usefixtures("_frequent_switches")
def test_a_thread_reads_while_another_settles_what_is_new() -> None:
    """On a cluster, the loop of each node settles what it has added, and all of them read."""
    counters, number, errors = Counters(), 3_000, []

    def settle() -> None:
        for one in range(number):
            counters.add("q", f"x{one}")
            counters.settle("q", {f"x{one}": 1})

    def read() -> None:
        try:
            while thread.is_alive():
                counters.pending()
        except RuntimeError as exc:
            errors.append(exc)

    thread = threading.Thread(target=settle)
    thread.start()
    read()
    thread.join()
    assert not errors
    assert counters.pending() == {}

"""Recorder: no count is lost among threads, and none is given out again once it is settled."""

from __future__ import annotations

import sys
import threading

import pytest

from celery_delayq.metrics.recorder import Recorder


@pytest.fixture
def _frequent_switches() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_frequent_switches")
def test_threads_count_at_once_while_another_settles() -> None:
    recorder, each, settled = Recorder(), 5_000, 0
    threads = [threading.Thread(target=lambda: [recorder.add("q", "x") for _ in range(each)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or recorder.pending():
        pending = recorder.pending().get("q", {})
        recorder.settle("q", pending)
        settled += pending.get("x", 0)
    assert settled == 4 * each


def test_what_is_not_settled_is_given_out_again() -> None:
    recorder = Recorder()
    recorder.add("q", "x", 3)
    recorder.add("q", "y")
    recorder.add("other", "x")
    assert recorder.pending() == {"q": {"x": 3, "y": 1}, "other": {"x": 1}}
    recorder.settle("q", {"x": 3})
    recorder.add("q", "x")
    assert recorder.pending() == {"q": {"x": 1, "y": 1}, "other": {"x": 1}}


@pytest.mark.usefixtures("_frequent_switches")
def test_a_thread_reads_while_another_settles_what_is_new() -> None:
    """On a cluster, the loop of each node settles what it has added, and all of them read."""
    recorder, number, errors = Recorder(), 3_000, []

    def settle() -> None:
        for one in range(number):
            recorder.add("q", f"x{one}")
            recorder.settle("q", {f"x{one}": 1})

    def read() -> None:
        try:
            while thread.is_alive():
                recorder.pending()
        except RuntimeError as exc:
            errors.append(exc)

    thread = threading.Thread(target=settle)
    thread.start()
    read()
    thread.join()
    assert not errors
    assert recorder.pending() == {}

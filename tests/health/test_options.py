"""Settings that nothing reads, wrong values, and what differs from the defaults."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_delayq.basics.finding import Finding, Level
from celery_delayq.health.options import check_options, described


def check(**conf: Any) -> list[Finding]:
    app = Celery("shop", broker="delayq://localhost", set_as_current=False)
    app.conf.update(conf)
    return list(check_options(app))


def test_defaults_are_well() -> None:
    (finding,) = check()
    assert (finding.level, finding.message) == (Level.OK, "All options have their defaults.")


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"delayq_transfer_grase": 1.0}, "did you mean delayq_transfer_grace?"),
        ({"delayq_transfer_grace": "1"}, "delayq_transfer_grace must be a number"),
        ({"broker_transport_options": {"leese": 1}}, "did you mean 'lease'?"),
        ({"broker_transport_options": {"lease": -1}}, "must be 2 to 3600"),
        ({"broker_transport_options": {"transfer_grace": 1}}, "set app.conf.delayq_transfer_grace."),
    ],
)
def test_what_a_worker_refuses_is_an_error(conf: dict[str, Any], words: str) -> None:
    (finding,) = check(**conf)
    assert finding.level is Level.ERROR
    assert words in finding.message


def test_all_that_is_wrong_is_said() -> None:
    found = check(delayq_a=1, delayq_inspect_limit=-1, broker_transport_options={"replicas": "2", "mirror_lists": True})
    assert [finding.level for finding in found] == [Level.ERROR] * 4


@pytest.mark.parametrize(
    ("name", "advice"), [("visibility_timout", "Did you mean 'visibility_timeout'?"), ("colour", "Remove it.")]
)
def test_an_option_that_nothing_reads_is_a_warning(name: str, advice: str) -> None:
    (finding,) = check(broker_transport_options={name: 1})
    assert finding.level is Level.WARNING
    assert name in finding.message
    assert finding.advice == advice


def test_that_retry_on_timeout_has_no_effect_is_noted() -> None:
    note, rest = check(broker_transport_options={"retry_on_timeout": True})
    assert (note.level, rest.level) == (Level.NOTE, Level.OK)
    assert "retry_on_timeout is ignored" in note.message


def test_options_of_kombu_are_known() -> None:
    options = {"visibility_timeout": 60, "max_retries": 3, "master_name": "shop", "socket_keepalive": True}
    (finding,) = check(broker_transport_options=options)
    assert finding.level is Level.OK


def test_what_differs_from_the_defaults_is_named() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.broker_transport_options = {"lease": 60.0, "delivery_limit": 20, "client_name": "secret"}
    app.conf.delayq_schedule_missed = "all"
    assert described(app) == (
        "Options that differ from the defaults: lease 60.0, delayq_schedule_missed 'all', client_name"
    )


def test_options_of_kombu_are_named_without_their_values() -> None:
    (finding,) = check(broker_transport_options={"socket_timeout": 5, "socket_keepalive": True})
    assert finding.message == "Options that differ from the defaults: socket_keepalive, socket_timeout."

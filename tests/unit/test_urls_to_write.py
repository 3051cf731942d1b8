"""What is said of a broker URL that is not ours: exactly what to write instead."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu import Connection

from celery_delayq import ConfigurationError, DelayQ, register
from tests.cli.running import failed, run

#: A broker URL, what is said that it is, and what to write.
URLS = [
    ("redis://me:s3cret@h:1/0", "redis://me:**@h:1/0", "start the URL with delayq:// instead of redis://"),
    ("rediss://h:1/0", "rediss://", "start the URL with delayqs:// instead of rediss://"),
    ("sentinel://h:1/0", "sentinel://", "start the URL with delayq+sentinel:// instead of sentinel://"),
    ("sentinel://h:1;sentinel://g:1", "sentinel://", "start each URL with delayq+sentinel:// instead of sentinel://"),
    ("redis+socket:///s", "redis+socket:///s", "start the URL with delayq+socket:// instead of redis+socket://"),
    ("amqp://h//", "amqp://", "it has to be Redis: start the URL with delayq://"),
    ("filesystem://", "filesystem://", "it has to be Redis: start the URL with delayq://"),
]

NONE = (
    "no broker URL is set, and the broker of app 'shop' is Celery's default, amqp://guest:**@localhost:5672//: set "
    "broker_url to a URL that starts with delayq:// (from the command line: perhaps -A is missing)"
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("url", "what", "advice"), URLS)
def test_of_calls(url: str, what: str, advice: str) -> None:
    delayq = DelayQ(Celery("shop", broker=url, set_as_current=False))
    with pytest.raises(ConfigurationError) as caught:
        delayq.counts()
    assert str(caught.value).startswith(f"the broker of app 'shop' is {what}")
    assert str(caught.value).endswith(f": {advice}")


@pytest.mark.parametrize(("url", "what", "advice"), URLS)
def test_of_commands(url: str, what: str, advice: str) -> None:
    app = Celery("shop", broker=url, set_as_current=False)
    failed(run(app, "status"), f"Error: the broker of app 'shop' is {what}", f": {advice}, and create DelayQ(app) in")
    DelayQ(app)
    done = run(app, "status")
    failed(done, f"Error: the broker of app 'shop' is {what}")
    assert done.stderr.endswith(f": {advice}\n")


def test_without_any_url() -> None:
    app = Celery("shop", set_as_current=False)
    failed(run(app, "status"), f"Error: {NONE}, and create DelayQ(app) in the module that `celery -A` names")
    with pytest.raises(ConfigurationError) as caught:
        DelayQ(app).counts()
    assert str(caught.value) == NONE
    failed(run(app, "metrics", "--once"), f"Error: {NONE}")


@pytest.mark.parametrize("name", ["broker_url", "broker_read_url", "broker_write_url"])
def test_amqp_that_somebody_has_set_is_not_the_default(name: str) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.update({name: "amqp://"})
    failed(run(app, "status"), "the broker of app 'shop' is amqp://", "it has to be Redis")


SENTINEL = (
    "the broker URL is one of Redis Sentinel, which has to know the name of the master: set "
    'app.conf.broker_transport_options = {"master_name": "mymaster"}'
)


@pytest.mark.parametrize("scheme", ["delayq+sentinel", "delayqs+sentinel"])
@pytest.mark.parametrize("options", [{}, {"master_name": ""}, {"master_name": None}])
def test_sentinels_without_the_name_of_the_master(scheme: str, options: dict[str, str | None]) -> None:
    url = f"{scheme}://127.0.0.1:1/0"
    app = Celery("shop", broker=url, broker_transport_options=options, set_as_current=False)
    delayq = DelayQ(app)
    for call in (delayq.counts, lambda: app.send_task("note"), lambda: app.connection().transport):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == SENTINEL
    failed(run(app, "status"), f"Error: {SENTINEL}")


def test_and_with_kombu_alone() -> None:
    register()
    with pytest.raises(ValueError, match="the name of the master") as caught:
        Connection("delayq+sentinel://127.0.0.1:1/0").connect()
    assert str(caught.value) == SENTINEL

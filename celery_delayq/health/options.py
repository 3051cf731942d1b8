"""Whether the settings of an app are right, and which ones differ from the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.finding import Finding, Level, sentence
from celery_delayq.options.settings import (
    APP_SETTINGS,
    PREFIX,
    TRANSPORT_OPTIONS,
    changed,
    check_urls,
    given_settings,
    misspelt,
    wrong_app_settings,
    wrong_transport_options,
)
from celery_delayq.transport import KOMBU_OPTIONS

_CHECK = "settings"

#: Further keys of `broker_transport_options`, which `kombu.Connection` and Celery read.
_OF_CONNECTIONS = (
    *("max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout"),
    *("errback", "callback", "retry_on_error", "retry", "unacked_restore_interval", "confirm_publish"),
)


def check_options(app: Any) -> Iterator[Finding]:
    """Yield what is wrong with the settings of an app, or which ones differ from the defaults."""
    wrong = list(_wrong(app))
    for problem in wrong:
        yield Finding(_CHECK, Level.ERROR, sentence(problem))
    unknown = list(_unknown(app))
    for name in unknown:
        meant = misspelt(name, (*KOMBU_OPTIONS, *_OF_CONNECTIONS))
        yield Finding(
            _CHECK,
            Level.WARNING,
            f"Unknown option {name!r} in broker_transport_options: nothing reads it.",
            f"Did you mean {meant!r}?" if meant else "Remove it.",
        )
    if app.conf.broker_transport_options.get("retry_on_timeout"):
        yield Finding(
            _CHECK,
            Level.NOTE,
            "The transport option retry_on_timeout is ignored: with it, redis-py could send a command twice.",
            "Remove it. Workers reconnect on their own, and publishers retry as their retry_policy says.",
        )
    if not (wrong or unknown):
        yield Finding(_CHECK, Level.OK, f"{described(app)}.")


def _wrong(app: Any) -> Iterator[str]:
    try:
        check_urls(app)
    except ConfigurationError as exc:
        yield str(exc)
    yield from wrong_app_settings(given_settings(app.conf))
    yield from wrong_transport_options(app.conf.broker_transport_options, KOMBU_OPTIONS)


def _unknown(app: Any) -> Iterator[str]:
    """Yield the transport options that nobody reads, except those that are an error."""
    given = app.conf.broker_transport_options
    for name in sorted(given.keys() - {*TRANSPORT_OPTIONS, *KOMBU_OPTIONS, *_OF_CONNECTIONS}):
        if not any(wrong_transport_options({name: given[name]}, KOMBU_OPTIONS)):
            yield name


def described(app: Any) -> str:
    """Return in words which options differ from the defaults. Of kombu's only the names: they may hold secrets."""
    options = changed(app.conf.broker_transport_options, TRANSPORT_OPTIONS)
    settings = changed(given_settings(app.conf), APP_SETTINGS)
    found = [f"{name} {value!r}" for name, value in options.items()]
    found += [f"{PREFIX}{name} {value!r}" for name, value in settings.items()]
    found += sorted(
        app.conf.broker_transport_options.keys() & {*KOMBU_OPTIONS, *_OF_CONNECTIONS} - {*TRANSPORT_OPTIONS}
    )
    return f"Options that differ from the defaults: {', '.join(found)}" if found else "All options have their defaults"

"""All checks of an app: what `DelayQ.check` and `celery delayq check` find, even if the broker cannot be used."""

from __future__ import annotations

import re
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.basics.finding import Finding, Level, not_checked, sentence
from celery_delayq.health.advice import advice_for
from celery_delayq.health.called import check_called
from celery_delayq.health.check import check_broker, check_only_overdue
from celery_delayq.health.connecting import NoBroker, reaching
from celery_delayq.health.options import check_options

#: How long to wait for each answer, in seconds.
_PATIENCE_S = 2.0

#: What Redis says if a user may not run a command without which nothing can be checked.
_REFUSED = re.compile(r"no permissions to run the '([\w|]+)' command")

#: What to do if the server cannot be used, and does not say why.
_NOTHING_KNOWN = "Check the broker URL, and that the server runs: nothing works without it."


def check_settings(app: Any) -> list[Finding]:
    """Return what is found without asking a server."""
    return [*check_called(app), *check_options(app)]


def check_all(app: Any) -> list[Finding]:
    """Return what all checks found; see `DelayQ.check`. It connects anew."""
    findings = check_settings(app)
    try:
        app.loader.import_default_modules()
    except Exception as exc:  # of any module of the app
        findings.append(not_checked(f"cannot import all tasks of the app: {type(exc).__name__}: {exc}", "planner"))
    try:
        with reaching(app, patience_s=_PATIENCE_S) as channel:
            found = check_broker(app, channel)
    except NoBroker as exc:
        cannot = _cannot(app, exc)
        is_known = any(finding.message == cannot.message for finding in findings)
        found = [not_checked("correct the settings first", "server") if is_known else cannot]
    return [*findings, *found]


def check_overdue(app: Any, *, most_s: float) -> list[Finding]:
    """Return whether messages are overdue for longer than so many seconds; see `check_only_overdue`."""
    try:
        with reaching(app, patience_s=_PATIENCE_S) as channel:
            return check_only_overdue(app, channel, most_s=most_s)
    except NoBroker as exc:
        return [_cannot(app, exc)]


def _cannot(app: Any, exc: NoBroker) -> Finding:
    """Return the finding that the broker cannot be checked."""
    message = str(exc)
    refused = _REFUSED.search(message)
    if refused is None:
        is_of_server = isinstance(exc.__cause__, (OperationalError, RedisError))
        advice = advice_for(message, _NOTHING_KNOWN if is_of_server else "")  # others say what to do
        return Finding("server", Level.ERROR, sentence(message), advice)
    advice = "Ask an administrator to run the command below, and check again."
    user = app.connection_for_write().userid or "default"
    return Finding("server", Level.ERROR, sentence(message), advice, f"ACL SETUSER {user} +{refused[1]}")

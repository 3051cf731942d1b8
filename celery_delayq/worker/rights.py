"""A worker that Redis refuses something ends with one error that says which right, or which command, is missing."""

from __future__ import annotations

from typing import Any

import redis
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.finding import Finding, sentence
from celery_delayq.basics.text import with_app
from celery_delayq.health.check import check_rights
from celery_delayq.health.permissions import RENAMED, UNKNOWN
from celery_delayq.transport import Transport

logger = get_logger(__name__)


def name_missing_rights(consumer: Any) -> None:
    """Make a worker's consumer say which rights or commands are missing, if it ends because of one.

    Redis names no key, and Celery would log a hundred lines. Other errors stay as they are.

    Wraps `Consumer.start` of one worker (Celery 5.6 and 5.7), which returns when the worker ends. Celery's worker
    takes SystemExit for a request to end, and logs no more.
    """
    start = consumer.start

    def start_and_explain() -> None:
        try:
            start()
        except ConfigurationError:  # it says what to write, where the server is of another kind than the URL says
            raise
        except Exception as exc:
            refusal = _refusal(exc)
            unknown = UNKNOWN.search(str(refusal))
            if unknown:
                logger.critical(
                    "Redis does not know the command %s, which this worker needs. %s", unknown[1].upper(), RENAMED
                )
                raise SystemExit(EX_FAILURE) from exc
            missing = [] if refusal is None else _missing(consumer.app)
            if not missing:
                raise
            commands = "\n".join(dict.fromkeys(finding.command for finding in missing))
            logger.critical(
                "Redis refuses what this worker needs: %s %s Let an administrator allow it, and check again with "
                "%s:\n%s",
                sentence(str(refusal)),
                missing[0].message,
                with_app("`celery -A ... delayq check`"),
                commands,
            )
            raise SystemExit(EX_FAILURE) from exc

    consumer.start = start_and_explain


def _refusal(exc: BaseException | None) -> redis.ResponseError | None:
    """Return the error of Redis that is, or has caused, an error; None if there is none."""
    while exc is not None and not isinstance(exc, redis.ResponseError):
        exc = exc.__cause__
    return exc


def _missing(app: Any) -> list[Finding]:
    """Return the findings that rights are missing; empty if there are none, or this cannot be found out."""
    try:
        with app.connection_for_read() as connection:
            if not isinstance(connection.transport, Transport):
                return []
            found = check_rights(app, connection.default_channel)
    except (redis.RedisError, OperationalError, OSError):
        return []
    return [finding for finding in found if finding.command]

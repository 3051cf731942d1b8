"""The URL schemes of this package: `register` makes them known to kombu. Before that, they are an error that says how.

kombu finds transports only in a table of its process, not by entry points. So where neither Celery's command line nor
the app's module imports any of this package, kombu says `No such transport: delayq`. kombu does have entry points for
serializers, which it loads in every process. With one of ours, `import kombu` would fail wherever this package is only
half installed.
"""

from __future__ import annotations

from typing import NoReturn

import click
from kombu.transport import TRANSPORT_ALIASES

from celery_delayq.errors import ConfigurationError

#: Scheme -> transport class, for kombu's table of aliases.
SCHEMES = {
    "delayq": "celery_delayq.transport:Transport",
    "delayqs": "celery_delayq.transport:Transport",
    "delayq+sentinel": "celery_delayq.transport:SentinelTransport",
    "delayq+cluster": "celery_delayq.transport:ClusterTransport",
    "delayqs+cluster": "celery_delayq.transport:ClusterTransport",
}


class NotCalled(click.ClickException, ConfigurationError):
    """A `delayq` URL is used, and `DelayQ(app)` was not called. Celery's command line shows the message alone."""


def register() -> None:
    """Register the `delayq` URL schemes with kombu, in this process.

    `DelayQ(app)` does this itself. Call it in processes that use such a URL without `DelayQ(app)`, for example in a
    pytest fixture that creates its own app. It does not connect, and may be called any number of times.
    """
    TRANSPORT_ALIASES.update(SCHEMES)


def expect_register() -> None:
    """Until `register` is called, let kombu raise `NotCalled` for our schemes, where it would not know them."""
    for scheme in SCHEMES:
        TRANSPORT_ALIASES.setdefault(scheme, _refuse)


def _refuse() -> NoReturn:
    """Stand for a transport: kombu (5.6 and 5.7) calls what the table has if it is a function."""
    raise NotCalled(
        "the broker URL starts with delayq, but DelayQ(app) was not called. Call it where the app is created:\n\n"
        "    from celery_delayq import DelayQ\n\n"
        "    delayq = DelayQ(app)\n\n"
        "A process without such an app can call celery_delayq.register() instead."
    )

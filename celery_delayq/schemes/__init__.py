"""The URL schemes of this package: `register` makes them known to kombu. Until then, they are an error that says how.

kombu finds transports only in a table of its process. But it has entry points for serializers, and loads them in each
process that makes a Celery app, a producer or a consumer. `NO_SERIALIZER` is such an entry point, so that this module
puts the error into the table of a process that imports nothing else of this package. It is therefore a part of
`import celery` for all programs beside which this package is installed, and imports next to nothing.
"""

from __future__ import annotations

from typing import NoReturn

from kombu.transport import TRANSPORT_ALIASES

#: Scheme -> transport class, for kombu's table of aliases.
SCHEMES = {
    "delayq": "celery_delayq.transport:Transport",
    "delayqs": "celery_delayq.transport:Transport",
    "delayq+sentinel": "celery_delayq.transport:SentinelTransport",
    "delayqs+sentinel": "celery_delayq.transport:SentinelTransport",
    "delayq+cluster": "celery_delayq.transport:ClusterTransport",
    "delayqs+cluster": "celery_delayq.transport:ClusterTransport",
}

#: What kombu registers for the entry point: no encoder, no decoder, and a content type that no message has.
NO_SERIALIZER = (None, None, "application/x-celery-delayq-none")


def register() -> None:
    """Register the `delayq` URL schemes with kombu, in this process.

    `DelayQ(app)` does this itself. Call it in processes that use such a URL without `DelayQ(app)`, for example in a
    pytest fixture that creates its own app. It does not connect, and may be called any number of times.
    """
    TRANSPORT_ALIASES.update(SCHEMES)


def _refuse() -> NoReturn:
    """Stand for a transport: kombu (5.6 and 5.7) calls what the table has if it is a function."""
    from celery_delayq.schemes.uncalled import NotCalled

    raise NotCalled


for _scheme in SCHEMES:
    TRANSPORT_ALIASES.setdefault(_scheme, _refuse)

"""Which connections are encrypted, and that the certificate is verified by default."""

from __future__ import annotations

import ssl
from typing import Any

import kombu
import pytest

from celery_delayq.transport import Transport, register

OURS = "celery_delayq.transport:Transport"
VERIFIED = {"ssl_cert_reqs": ssl.CERT_REQUIRED}


@pytest.fixture(autouse=True)
def schemes() -> None:
    register()


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("delayqs://h", {}, VERIFIED),
        ("delayqs://h?ssl_cert_reqs=none", {}, {"ssl_cert_reqs": ssl.CERT_NONE}),
        ("rediss://user:secret@h", {"transport": OURS, "ssl": True}, VERIFIED),
        ("rediss://h?ssl_cert_reqs=none", {"transport": OURS}, {"ssl_cert_reqs": ssl.CERT_NONE}),
        ("delayq://h", {"ssl": True}, VERIFIED),
        ("delayq://h", {"ssl": {"ssl_ca_certs": "ca.pem"}}, {"ssl_ca_certs": "ca.pem"}),
        ("delayq://h", {}, False),
        ("redis://h", {"transport": OURS}, False),
    ],
)
def test_tls_is_used_where_the_url_or_the_options_ask_for_it(url: str, options: dict[str, Any], expected: Any) -> None:
    for connection in (kombu.Connection(url, **options), kombu.Connection(url, **options).clone()):
        assert isinstance(connection.transport, Transport)
        assert connection.ssl == expected
        assert connection.clone().ssl == expected

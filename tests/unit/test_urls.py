"""Which connections are encrypted, that the certificate is verified by default, and how a connection names its URL."""

from __future__ import annotations

import ssl
from typing import Any

import kombu
import pytest

from celery_delayq.schemes import SCHEMES
from celery_delayq.transport import Transport, register

OURS = "celery_delayq.transport:Transport"
VERIFIED = {"ssl_cert_reqs": ssl.CERT_REQUIRED}

#: Options that a URL of Sentinels needs.
NAMED = {"master_name": "shop"}


@pytest.fixture(autouse=True)
def registered() -> None:
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_that_switched_to_the_next_url_names_it(scheme: str) -> None:
    urls = f"{scheme}://me:s3cret@a:1/0;{scheme}://user:secret@b:2/0"
    connection = kombu.Connection(urls, transport_options=NAMED)
    for expected in (f"{scheme}://user:**@b:2/0", f"{scheme}://me:**@a:1/0", f"{scheme}://user:**@b:2/0"):
        connection.maybe_switch_next()
        assert connection.as_uri() == expected
        clone = connection.clone()
        assert (clone.as_uri(), clone.hostname, clone.port) == (expected, connection.hostname, connection.port)


@pytest.mark.parametrize("scheme", ["delayqs+sentinel", "delayqs+cluster"])
def test_the_first_of_several_hosts_says_how_to_connect_to_all(scheme: str) -> None:
    """Also after kombu has switched to the next URL."""
    first = {"userid": None, "password": "s3cret", "virtual_host": "0", "ssl": {"ssl_ca_certs": "/ca.pem"}}
    url = (
        f"{scheme}://:s3cret@a:1/0?ssl_ca_certs=%2Fca.pem;{scheme}://b:2;{scheme}://user:other@c:3/0?ssl_cert_reqs=none"
    )
    connection = kombu.Connection(url, transport_options=NAMED)
    for host in ("a", "b", "c", "a"):
        for one in (connection, connection.clone()):
            client = one.transport.client
            assert {name: getattr(client, name) for name in ("hostname", *first)} == {"hostname": host, **first}
        connection.maybe_switch_next()


@pytest.mark.parametrize("scheme", ["delayqs+sentinel", "delayqs+cluster"])
def test_after_a_switch_the_options_count_if_the_first_url_says_nothing(scheme: str) -> None:
    connection = kombu.Connection(f"{scheme}://a:1;{scheme}://b:2", ssl={"ssl_password": "p"}, transport_options=NAMED)
    for host in ("a", "b", "a"):
        client = connection.transport.client
        assert (client.hostname, client.ssl) == (host, {"ssl_password": "p"})
        connection.maybe_switch_next()


@pytest.mark.parametrize("several", ["sentinel", "cluster"])
@pytest.mark.parametrize("schemes", [("delayqs", "delayq"), ("delayq", "delayqs")])
def test_if_one_of_several_hosts_asks_for_tls_nothing_is_sent_in_the_clear(
    schemes: tuple[str, str], several: str
) -> None:
    urls = ";".join(f"{scheme}+{several}://{scheme}:1" for scheme in schemes)
    connection = kombu.Connection(urls, transport_options=NAMED)
    for _ in range(3):
        for one in (connection, connection.clone()):
            client = one.transport.client
            assert (client.ssl, client.asks_for_tls) == (VERIFIED, True)
        connection.maybe_switch_next()

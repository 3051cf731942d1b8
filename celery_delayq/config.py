"""Read this package's settings from a Celery app."""

from __future__ import annotations

from typing import Any

from celery_delayq.errors import ConfigurationError
from celery_delayq.settings import PREFIX, AppSettings, app_settings
from celery_delayq.transport import Transport


def settings_of(app: Any) -> AppSettings:
    """Return the checked settings of an app.

    Raises:
        ConfigurationError: an unknown `delayq_*` setting, a wrong value, or URLs that would lead past our transport.
    """
    check_urls(app)
    return app_settings(_delayq_settings(app.conf))


def _delayq_settings(conf: Any) -> dict[str, Any]:
    """Return all settings that begin with our prefix, without it, whatever namespace and case the app uses."""
    namespace = (getattr(conf, "prefix", None) or "").lower()
    found = {}
    for key in conf:
        name = str(key).lower().removeprefix(namespace)
        if name.startswith(PREFIX):
            found[name.removeprefix(PREFIX)] = conf[key]
    return found


def check_urls(app: Any) -> None:
    """Refuse URLs that kombu misunderstands when `broker_transport` names our transport.

    Raises:
        ConfigurationError: such a URL; says what to write instead.
    """
    transport = app.conf.broker_transport
    if not (isinstance(transport, str) and transport.startswith("celery_delayq.")):
        return
    given = app.conf.broker_read_url or app.conf.broker_url or ""
    urls = given.split(";") if isinstance(given, str) else list(given)
    for url in urls:
        scheme = url.partition("://")[0]
        if "+" in scheme and not scheme.startswith("delayq"):
            raise ConfigurationError(
                f"kombu ignores broker_transport for a {scheme}:// URL: write delayq+{scheme.partition('+')[2]}://"
            )
        if scheme in ("rediss", "delayqs") and not app.conf.broker_use_ssl and "ssl_" not in url:
            raise ConfigurationError(
                f"kombu forgets that {scheme}:// means TLS when broker_transport names the transport, and would send "
                "everything in the clear: write delayqs://, and leave broker_transport out"
            )
        if len(urls) > 1 and not scheme.startswith("delayq"):
            raise ConfigurationError(
                f"kombu forgets broker_transport when it fails over to another {scheme}:// URL: "
                "write delayq:// (or delayqs://) in each of them"
            )


def require_transport(app: Any, connection: Any) -> None:
    """Refuse a connection that is not to a `delayq://` broker.

    Raises:
        ConfigurationError: says what to write.
    """
    check_urls(app)
    if not isinstance(connection.transport, Transport):
        raise ConfigurationError(
            f"the broker of app {app.main!r} is {connection.as_uri()}: begin the URL with delayq:// instead of redis://"
        )

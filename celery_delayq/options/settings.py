"""The options of this package: their names, types, ranges and defaults, checked once.

Options live in two places. `broker_transport_options` holds options that concern every message a process publishes.
The app's `delayq_*` settings configure the loops in workers. All times here are in seconds, as in Celery; the modules
below use milliseconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.transfer.settings import LONGEST_LEAD_S, MAX_BATCH_SIZE, TransferSettings

#: Prefix of the app's settings.
PREFIX = "delayq_"

#: The setting of Django that names the Celery app. An app that reads Django's settings sees this one, too.
DJANGO_APP = "DELAYQ_APP"


@dataclass(frozen=True)
class Option:
    """One option and the values that it accepts.

    Attributes:
        default: value if the option is not set. Its type is the type of the option.
        least: smallest value.
        most: largest value.
        choices: the accepted values of a text option.
    """

    default: bool | int | float | str
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> Any:
        """Return the value, converted to the option's type.

        Raises:
            ConfigurationError: the value has the wrong type or is out of range. The message names the option.
        """
        kind = type(self.default)
        if kind is bool:
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name} must be True or False, not {value!r}")
            return value
        if kind is str:
            if value not in self.choices:
                raise ConfigurationError(f"{name} must be one of {', '.join(self.choices)}, not {value!r}")
            return value
        accepted = (int, float) if kind is float else (int,)
        if isinstance(value, bool) or not isinstance(value, accepted):
            wanted = "a number" if kind is float else "a whole number"
            raise ConfigurationError(f"{name} must be {wanted}, not {value!r}")
        if not self.least <= value <= self.most:
            raise ConfigurationError(f"{name} must be {self.least:g} to {self.most:g}, not {value!r}")
        return kind(value)


#: Our options in `broker_transport_options`. All other options there belong to kombu or redis-py.
TRANSPORT_OPTIONS: Mapping[str, Option] = {
    "mirror_list": Option(False),
    "delay_eta_tasks": Option(True),
    "lease": Option(30.0, 2.0, 3600.0),
    "delivery_limit": Option(20, 0, 1_000_000),
    "requeue_limit": Option(0, 0, 1_000_000),
    "replicas": Option(0, 0, 100),
    "replicas_timeout": Option(1.0, 0.001, 60.0),
}

#: Default of kombu's `socket_timeout`, in seconds: no command of this package blocks on the server.
SOCKET_TIMEOUT_S = 10.0

#: The same for connections to Redis Sentinel, which answers at once: the next one is asked after so long.
SENTINEL_TIMEOUT_S = 0.5

#: Default of kombu's `health_check_interval`, in seconds. Loops look at their connections every 5 s, so none is silent
#: for more than 20 s. Proxies, firewalls and NAT forget idle connections, the first ones after 30 s.
HEALTH_CHECK_S = 15.0


def check_master_name(options: Mapping[str, Any] | None, setting: str, subject: str) -> None:
    """Make sure that the options of a URL of Sentinels name the master.

    Args:
        options: the transport options.
        setting: the name of Celery's setting that has them.
        subject: what the URL is called, for example "the broker URL is one".

    Raises:
        ConfigurationError: they do not.
    """
    if not (options or {}).get("master_name"):
        raise ConfigurationError(
            f"{subject} of Redis Sentinel, which has to know the name of the master: set "
            f'app.conf.{setting} = {{"master_name": "mymaster"}}'
        )


def sentinel_options(
    socket_timeout: float | None = None, socket_connect_timeout: float | None = None
) -> dict[str, Any]:
    """Return options of redis-py for connections to sentinels: one attempt, which ends soon.

    redis-py would try one that is down for 7 s, and one that hangs for a minute, before it asks the next one. kombu
    asks them in the same order for each connection.

    Args:
        socket_timeout: that of the master, in seconds. If it is shorter than `SENTINEL_TIMEOUT_S`, it is theirs, too.
        socket_connect_timeout: the same for a new connection.
    """
    return {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": min(socket_timeout or SENTINEL_TIMEOUT_S, SENTINEL_TIMEOUT_S),
        "socket_connect_timeout": min(socket_connect_timeout or SENTINEL_TIMEOUT_S, SENTINEL_TIMEOUT_S),
    }


#: What to do with missed runs of a periodic task.
MISSED_POLICIES = ("skip", "once", "all")

#: Upper limit of `schedule_catch_up`.
MOST_CATCH_UP = 10_000

#: The app's settings, without the prefix.
APP_SETTINGS: Mapping[str, Option] = {
    "transfer_grace": Option(0.25, 0.01, 60.0),
    "transfer_interval": Option(5.0, 0.1, 300.0),
    "transfer_batch_size": Option(TransferSettings.batch_size, 1, MAX_BATCH_SIZE),
    "transfer_lead": Option(0.01, 0.0, LONGEST_LEAD_S),
    "fail_dead_letters": Option(True),
    "keep_failed": Option(False),
    "keep_failed_for": Option(7 * 86400.0, 1.0, 366 * 86400.0),
    "keep_failed_at_most": Option(10_000, 1, 1_000_000),
    "inspect_limit": Option(100, 0, 10_000),
    "metrics": Option(True),
    "schedule_missed": Option("once", choices=MISSED_POLICIES),
    "schedule_max_lateness": Option(0.0, 0.0, 366 * 86400.0),
    "schedule_catch_up": Option(100, 0, MOST_CATCH_UP),
}


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is probably a misspelling of, or None."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.75)
    return close[0] if close else None


def check_transport_options(given: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values of our transport options.

    Args:
        given: `broker_transport_options`.
        others: names that kombu knows. They are never treated as a misspelling of ours.

    Raises:
        ConfigurationError: one of our options has a wrong value or contradicts another, or a name is probably misspelt.
    """
    for problem in wrong_transport_options(given, others):
        raise ConfigurationError(problem)
    return {
        name: option.check(_in_transport_options(name), given.get(name, option.default))
        for name, option in TRANSPORT_OPTIONS.items()
    }


def wrong_transport_options(given: Mapping[str, Any], others: Iterable[str] = ()) -> Iterator[str]:
    """Yield all that is wrong with our transport options, see `check_transport_options`."""
    for name in sorted(given.keys() - TRANSPORT_OPTIONS.keys() - set(others)):
        meant = misspelt(name, TRANSPORT_OPTIONS)
        bare = name.removeprefix(PREFIX)
        if meant or (bare != name and bare in TRANSPORT_OPTIONS):
            yield f"unknown option {name!r} in broker_transport_options: did you mean {meant or bare!r}?"
        elif bare != name or name in APP_SETTINGS:
            yield (
                f"{name!r} does not belong in broker_transport_options: "
                f"it is an app setting; set app.conf.{PREFIX}{misspelt(bare, APP_SETTINGS) or bare}"
            )
    checked: dict[str, Any] = {}
    for name, option in TRANSPORT_OPTIONS.items():
        try:
            checked[name] = option.check(_in_transport_options(name), given.get(name, option.default))
        except ConfigurationError as exc:
            yield str(exc)
    wait_s, longest_s = checked.get("replicas_timeout", 0.0), given.get("socket_timeout", SOCKET_TIMEOUT_S)
    if checked.get("replicas") and isinstance(longest_s, (int, float)) and wait_s >= longest_s:
        yield (
            f"broker_transport_options['replicas_timeout'] ({wait_s:g} s) must be less than "
            f"socket_timeout ({longest_s:g} s): otherwise the connection is lost while replicas are waited for"
        )


def _in_transport_options(name: str) -> str:
    return f"broker_transport_options[{name!r}]"


@dataclass(frozen=True)
class ScheduleSettings:
    """Defaults of periodic tasks.

    Attributes:
        missed: what to do with missed runs, one of MISSED_POLICIES.
        max_lateness_s: a run that would start later than this is dropped, in seconds; 0 means never.
        catch_up: how many missed runs the policy `all` makes up for.
    """

    missed: str = "once"
    max_lateness_s: float = 0.0
    catch_up: int = 100


@dataclass(frozen=True)
class FailedSettings:
    """Which failed tasks are kept.

    Attributes:
        are_kept: whether those are that do not say so themselves.
        for_ms: for how long, in ms.
        at_most: how many of each broker list; then the oldest one is dropped.
    """

    are_kept: bool = False
    for_ms: int = 0
    at_most: int = 0


@dataclass(frozen=True)
class AppSettings:
    """The app's settings.

    Attributes:
        transfer: settings of transfer loops.
        fail_dead_letters: whether a task that reaches the delivery limit gets the result FAILURE.
        failed: which failed tasks are kept.
        inspect_limit: maximum number of waiting tasks in a worker's reply to `inspect scheduled`.
        metrics: whether workers count, see the room `metrics`.
        schedule: defaults of periodic tasks.
    """

    transfer: TransferSettings
    fail_dead_letters: bool
    failed: FailedSettings
    inspect_limit: int
    metrics: bool
    schedule: ScheduleSettings


def app_settings(given: Mapping[str, Any]) -> AppSettings:
    """Return the settings of an app.

    Args:
        given: the app's `delayq_*` settings, in lower case and without the prefix.

    Raises:
        ConfigurationError: a name is unknown, or a value has the wrong type or is out of range.
    """
    for problem in wrong_app_settings(given):
        raise ConfigurationError(problem)
    values = {
        name: option.check(PREFIX + name, given.get(name, option.default)) for name, option in APP_SETTINGS.items()
    }
    transfer = TransferSettings(
        grace_s=values["transfer_grace"],
        interval_s=values["transfer_interval"],
        batch_size=values["transfer_batch_size"],
        lead_s=values["transfer_lead"],
    )
    schedule = ScheduleSettings(
        missed=values["schedule_missed"],
        max_lateness_s=values["schedule_max_lateness"],
        catch_up=values["schedule_catch_up"],
    )
    failed = FailedSettings(
        values["keep_failed"], round(values["keep_failed_for"] * 1000), values["keep_failed_at_most"]
    )
    return AppSettings(
        transfer, values["fail_dead_letters"], failed, values["inspect_limit"], values["metrics"], schedule
    )


def wrong_app_settings(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield all that is wrong with the settings of an app, see `app_settings`."""
    for name in sorted(given.keys() - APP_SETTINGS.keys()):
        meant = misspelt(name, APP_SETTINGS)
        hint = f"did you mean {PREFIX}{meant}?" if meant else f"known settings are {_names(APP_SETTINGS)}"
        if name in TRANSPORT_OPTIONS:
            hint = f"{name} belongs in broker_transport_options"
        yield f"unknown setting {PREFIX}{name}: {hint}"
    for name, option in APP_SETTINGS.items():
        try:
            option.check(PREFIX + name, given.get(name, option.default))
        except ConfigurationError as exc:
            yield str(exc)


def changed(given: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options whose values differ from the defaults, sorted by name."""
    return {name: given[name] for name in sorted(options) if name in given and given[name] != options[name].default}


def settings_of(app: Any) -> AppSettings:
    """Return the checked settings of an app.

    Raises:
        ConfigurationError: a `delayq_*` setting is unknown, a value is wrong, or a URL would bypass our transport.
    """
    check_urls(app)
    return app_settings(given_settings(app.conf))


def add_defaults(app: Any) -> None:
    """Let an app's configuration have all our settings, so that they can be read before they are set.

    It reads no configuration. A setting that is given in upper case has its value in lower case, too, where Celery
    translates only the names of its own.
    """

    def all_settings() -> dict[str, Any]:
        given = given_settings(app.conf)
        return {PREFIX + name: given.get(name, option.default) for name, option in APP_SETTINGS.items()}

    app.add_defaults(all_settings)


def given_settings(conf: Any) -> dict[str, Any]:
    """Return all settings with our prefix, without the prefix. The app may use any namespace and case."""
    namespace = (getattr(conf, "prefix", None) or "").lower()
    found = {}
    for key in conf:
        name = str(key).lower().removeprefix(namespace)
        if name.startswith(PREFIX) and key != DJANGO_APP:
            found[name.removeprefix(PREFIX)] = conf[key]
    return found


def check_urls(app: Any) -> None:
    """Refuse URLs that kombu misreads when `broker_transport` names our transport.

    Raises:
        ConfigurationError: the app has such a URL. The message says what to write instead.
    """
    transport = app.conf.broker_transport  # a path, or the class
    path = transport if isinstance(transport, str) else getattr(transport, "__module__", "")
    if not path.startswith("celery_delayq."):
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
                + ("write delayq+sentinel://" if scheme == "sentinel" else "write delayq:// (or delayqs://)")
                + " in each of them"
            )


def _names(options: Iterable[str]) -> str:
    return ", ".join(PREFIX + name for name in options)

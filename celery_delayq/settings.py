"""The options of this package: their names, types, ranges and defaults, checked once.

Two places hold them, after what they belong to: `broker_transport_options` has those that concern every message a
process publishes, the app's `delayq_*` settings those of the loops in workers. Times are in seconds here, as Celery's
are; milliseconds begin behind this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery_delayq.delayed_queue import BATCH_SIZE
from celery_delayq.errors import ConfigurationError
from celery_delayq.scripts import MAX_BATCH_SIZE
from celery_delayq.transfer import TransferSettings

#: Prefix of the app's settings.
PREFIX = "delayq_"


@dataclass(frozen=True)
class Option:
    """One option: what values it takes.

    Attributes:
        default: used where it is not set; its type is the option's.
        least: smallest value.
        most: largest value.
        choices: of a text, what it may be.
    """

    default: bool | int | float | str
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> Any:
        """Return the value in the option's type.

        Raises:
            ConfigurationError: wrong type or out of range; names the option.
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


#: Ours among the `broker_transport_options`; all others are kombu's or redis-py's.
TRANSPORT_OPTIONS: Mapping[str, Option] = {
    "mirror_list": Option(False),
    "delay_eta_tasks": Option(True),
    "lease": Option(30.0, 2.0, 3600.0),
    "delivery_limit": Option(20, 0, 1_000_000),
}

#: A worker never holds a message longer than twice that for its eta, whatever the clocks say.
LONGEST_LEAD_S = 0.1

#: What becomes of runs of a periodic task that were missed.
MISSED_POLICIES = ("skip", "once", "all")

#: How many missed runs of a periodic task are made up for at most.
MOST_CATCH_UP = 10_000

#: The app's settings, without their prefix.
APP_SETTINGS: Mapping[str, Option] = {
    "transfer_grace": Option(0.25, 0.01, 60.0),
    "transfer_interval": Option(5.0, 0.1, 300.0),
    "transfer_batch_size": Option(BATCH_SIZE, 1, MAX_BATCH_SIZE),
    "transfer_lead": Option(0.01, 0.0, LONGEST_LEAD_S),
    "fail_dead_letters": Option(True),
    "inspect_limit": Option(100, 0, 10_000),
    "schedule_missed": Option("once", choices=MISSED_POLICIES),
    "schedule_max_lateness": Option(0.0, 0.0, 366 * 86400.0),
    "schedule_catch_up": Option(100, 0, MOST_CATCH_UP),
}


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return which of the `known` names `name` was probably meant to be."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.75)
    return close[0] if close else None


def check_transport_options(given: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values of our transport options.

    Args:
        given: `broker_transport_options`.
        others: names that kombu knows, which are never taken for a misspelling of ours.

    Raises:
        ConfigurationError: an option of ours has a wrong value, or one was probably misspelt.
    """
    for name in given.keys() - TRANSPORT_OPTIONS.keys() - set(others):
        meant = misspelt(name, TRANSPORT_OPTIONS)
        if meant:
            raise ConfigurationError(f"unknown option {name!r} in broker_transport_options: did you mean {meant!r}?")
        if name.startswith(PREFIX) or name in APP_SETTINGS:
            bare = name.removeprefix(PREFIX)
            raise ConfigurationError(
                f"{name!r} does not belong in broker_transport_options: "
                f"it is a setting of the app, app.conf.{PREFIX}{misspelt(bare, APP_SETTINGS) or bare}"
            )
    return {
        name: option.check(f"broker_transport_options[{name!r}]", given.get(name, option.default))
        for name, option in TRANSPORT_OPTIONS.items()
    }


@dataclass(frozen=True)
class ScheduleSettings:
    """Defaults of periodic tasks.

    Attributes:
        missed: what becomes of runs that were missed, one of MISSED_POLICIES.
        max_lateness_s: a run that would begin later than this is dropped, in seconds; 0: never.
        catch_up: how many missed runs the policy `all` makes up for.
    """

    missed: str = "once"
    max_lateness_s: float = 0.0
    catch_up: int = 100


@dataclass(frozen=True)
class AppSettings:
    """The app's settings.

    Attributes:
        transfer: of transfer loops.
        fail_dead_letters: whether the result of a task that reached the delivery limit becomes FAILURE.
        inspect_limit: waiting tasks that a worker names in its reply to `inspect scheduled`, at most.
        schedule: of periodic tasks.
    """

    transfer: TransferSettings
    fail_dead_letters: bool
    inspect_limit: int
    schedule: ScheduleSettings


def app_settings(given: Mapping[str, Any]) -> AppSettings:
    """Return the settings of an app.

    Args:
        given: the app's `delayq_*` settings, without their prefix and in lower case.

    Raises:
        ConfigurationError: an unknown name, a wrong type, or a value out of range.
    """
    for name in given.keys() - APP_SETTINGS.keys():
        meant = misspelt(name, APP_SETTINGS)
        hint = f"did you mean {PREFIX}{meant}?" if meant else f"known are {_names(APP_SETTINGS)}"
        if name in TRANSPORT_OPTIONS:
            hint = f"{name} belongs in broker_transport_options"
        raise ConfigurationError(f"unknown setting {PREFIX}{name}: {hint}")
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
    return AppSettings(transfer, values["fail_dead_letters"], values["inspect_limit"], schedule)


def _names(options: Iterable[str]) -> str:
    return ", ".join(PREFIX + name for name in options)

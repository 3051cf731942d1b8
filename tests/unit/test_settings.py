"""Options: what is wrong is said at start, what is not ours passes."""

from __future__ import annotations

import math
import re

import pytest
from celery import Celery
from kombu.transport.redis import SentinelChannel

from celery_delayq import DelayQ
from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.options.settings import (
    APP_SETTINGS,
    PREFIX,
    TRANSPORT_OPTIONS,
    Option,
    app_settings,
    check_transport_options,
    settings_of,
)
from celery_delayq.transfer.settings import TransferSettings

ALL = {**TRANSPORT_OPTIONS, **APP_SETTINGS}
NUMBERS = {name: option for name, option in ALL.items() if not isinstance(option.default, (bool, str))}


def wrong_values(option: Option) -> list[object]:
    """Return values of every other type."""
    wrong: list[object] = ["1", "yes", None, [1], {}, b"1", math.nan, math.inf]
    if isinstance(option.default, bool):
        return [*wrong, 0, 1, 0.0]
    if isinstance(option.default, int):
        return [*wrong, True, False, 1.0, 2.5]
    return [*wrong, True, False]


class TestEveryOption:
    @pytest.mark.parametrize("name", ALL)
    def test_has_a_default_that_is_allowed(self, name: str) -> None:
        option = ALL[name]
        assert option.check(name, option.default) == option.default

    @pytest.mark.parametrize(
        ("name", "value"),
        [(name, value) for name, option in ALL.items() for value in wrong_values(option)],
    )
    def test_refuses_other_types_by_name(self, name: str, value: object) -> None:
        with pytest.raises(ConfigurationError, match=f"^{name} must be .*{re.escape(repr(value))}"):
            ALL[name].check(name, value)

    @pytest.mark.parametrize("name", NUMBERS)
    def test_has_a_range(self, name: str) -> None:
        option = NUMBERS[name]
        least, most = type(option.default)(option.least), type(option.default)(option.most)
        assert option.check(name, least) == least
        assert option.check(name, most) == most
        for value in (least - 1, most + 1, -most):
            with pytest.raises(ConfigurationError, match=f"^{name} must be {option.least:g} to"):
                option.check(name, value)


class TestTransferSettings:
    def test_are_those_of_the_loop_by_default_and_a_lead(self) -> None:
        """A worker waits for the rest itself; a loop by itself, as a rule, is not followed by one."""
        assert app_settings({}).transfer == TransferSettings(lead_s=0.01)
        assert TransferSettings().lead_s == 0.0

    def test_all_are_handed_on(self) -> None:
        given = {"transfer_grace": 1, "transfer_interval": 2.5, "transfer_batch_size": 7, "transfer_lead": 0.05}
        settings = app_settings(given).transfer
        assert settings == TransferSettings(grace_s=1.0, interval_s=2.5, batch_size=7, lead_s=0.05)
        assert settings.grace_ms == 1000

    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ("transfer_grac", "transfer_grace"),
            ("transfers_interval", "transfer_interval"),
            ("transfer_batchsize", "transfer_batch_size"),
        ],
    )
    def test_a_misspelt_one_is_recognised(self, given: str, meant: str) -> None:
        with pytest.raises(ConfigurationError, match=f"unknown setting delayq_{given}: did you mean delayq_{meant}?"):
            app_settings({given: 1})

    def test_an_unknown_one_is_answered_with_those_there_are(self) -> None:
        with pytest.raises(ConfigurationError) as error:
            app_settings({"colour": "red"})
        assert "delayq_colour" in str(error.value)
        for name in APP_SETTINGS:
            assert f"delayq_{name}" in str(error.value)

    def test_a_wrong_value_is_named_as_the_user_wrote_it(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^delayq_transfer_grace must be a number"):
            app_settings({"transfer_grace": "soon"})


#: Of the transport options.
DEFAULTS = {
    "mirror_list": False,
    "delay_eta_tasks": True,
    "lease": 30.0,
    "delivery_limit": 20,
    "requeue_limit": 0,
    "replicas": 0,
    "replicas_timeout": 1.0,
}


class TestTransportOptions:
    def test_have_defaults(self) -> None:
        assert check_transport_options({}) == DEFAULTS

    def test_ours_are_returned(self) -> None:
        assert check_transport_options({"mirror_list": True, "lease": 5}) == {
            **DEFAULTS,
            "mirror_list": True,
            "lease": 5.0,
        }

    def test_replicas_must_answer_before_the_connection_is_lost(self) -> None:
        with pytest.raises(ConfigurationError, match="must be less than socket_timeout"):
            check_transport_options({"replicas": 1, "socket_timeout": 1})
        assert check_transport_options({"replicas": 1, "socket_timeout": 1.5})["replicas"] == 1
        assert check_transport_options({"socket_timeout": 1}) == DEFAULTS

    def test_those_of_kombu_pass(self) -> None:
        kombus = dict.fromkeys(SentinelChannel.from_transport_options, "anything")
        assert check_transport_options(kombus) == DEFAULTS

    @pytest.mark.parametrize(
        "name",
        [
            *("max_retries", "interval_start", "interval_step", "interval_max"),
            *("client_name", "retry_on_timeout", "ssl_ca_certs", "username", "protocol"),
            *("confirm_publish", "queue_order_strategy", "polling_interval"),
        ],
    )
    def test_those_of_redis_py_and_celery_pass(self, name: str) -> None:
        assert check_transport_options({name: object()}) == DEFAULTS

    @pytest.mark.parametrize("name", ["mirrorlist", "mirror_lists", "miror_list", "MIRROR_LIST"])
    def test_a_misspelt_one_is_recognised(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=f"'{name}'.*did you mean 'mirror_list'?"):
            check_transport_options({name: True})

    def test_a_name_that_kombu_knows_is_not_taken_for_a_misspelling(self) -> None:
        assert check_transport_options({"mirror_lists": 1}, others=["mirror_lists"])

    def test_a_wrong_value_is_named_as_the_user_wrote_it(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^broker_transport_options\['mirror_list'\] must be True"):
            check_transport_options({"mirror_list": "yes"})

    def test_ours_have_no_prefix(self) -> None:
        with pytest.raises(ConfigurationError, match=r"'delayq_lease'.*did you mean 'lease'\?"):
            check_transport_options({"delayq_lease": 1})

    @pytest.mark.parametrize("name", [*APP_SETTINGS, "delayq_transfer_grace"])
    def test_a_setting_of_the_app_is_sent_there(self, name: str) -> None:
        bare = name.removeprefix("delayq_")
        with pytest.raises(ConfigurationError, match=rf"app\.conf\.delayq_{bare}$"):
            check_transport_options({name: 1})


class TestOfAnApp:
    """`app.conf` has our settings, whether they are set or not."""

    @pytest.mark.parametrize("is_read_before", [False, True])
    def test_are_the_defaults(self, is_read_before: bool) -> None:
        app = Celery("shop", set_as_current=False)
        if is_read_before:
            assert app.conf.enable_utc
        DelayQ(app)
        for name, option in APP_SETTINGS.items():
            assert getattr(app.conf, PREFIX + name) == option.default
        assert settings_of(app) == app_settings({})

    def test_the_configuration_is_not_read_for_them(self) -> None:
        app = Celery("shop", set_as_current=False)
        DelayQ(app)
        assert not app.configured
        app.config_from_object({"delayq_transfer_lead": 0.05})
        assert app.conf.delayq_transfer_lead == 0.05

    @pytest.mark.parametrize(
        ("name", "namespace"),
        [
            ("delayq_transfer_lead", None),
            ("DELAYQ_TRANSFER_LEAD", None),
            ("CELERY_DELAYQ_TRANSFER_LEAD", "CELERY"),
            ("shop_delayq_transfer_lead", "shop"),
        ],
    )
    @pytest.mark.parametrize("delayqs", [1, 2])
    def test_what_is_set_counts(self, name: str, namespace: str | None, delayqs: int) -> None:
        app = Celery("shop", set_as_current=False)
        app.config_from_object({name: 0.05}, namespace=namespace)
        for _ in range(delayqs):
            DelayQ(app)
        assert app.conf.delayq_transfer_lead == settings_of(app).transfer.lead_s == 0.05
        assert app.conf.delayq_transfer_grace == 0.25

    def test_what_is_set_later_counts(self) -> None:
        app = Celery("shop", set_as_current=False)
        DelayQ(app)
        assert app.conf.delayq_transfer_lead == 0.01
        app.conf.delayq_transfer_lead = 0.07
        assert app.conf.delayq_transfer_lead == settings_of(app).transfer.lead_s == 0.07

    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            ("delayq_transfer_leed", 0.05, "unknown setting delayq_transfer_leed: did you mean delayq_transfer_lead?"),
            ("delayq_metrics", 1, "delayq_metrics must be True or False, not 1"),
        ],
    )
    def test_unknown_ones_and_wrong_values_stay_errors(self, name: str, value: object, error: str) -> None:
        app = Celery("shop", set_as_current=False)
        DelayQ(app)
        setattr(app.conf, name, value)
        with pytest.raises(ConfigurationError, match=re.escape(error)):
            settings_of(app)

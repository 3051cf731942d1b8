"""A worker starts with every right way to configure it, and with no wrong one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection

from celery_delayq import ConfigurationError, DelayedQueue, DelayQ, __version__
from celery_delayq.options.settings import settings_of
from celery_delayq.transport import SentinelTransport
from examples.private_redis import PrivateRedis, name_and_version
from tests.brokers import ClusterServer, Server
from tests.ledger import ALL_WELL, Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

of_one_server = pytest.mark.one_server("a URL of one server is what it is about")
no_server = pytest.mark.one_server("no server is asked")

OURS = "celery_delayq.transport:Transport"


def runs_delayed_tasks(app: Celery, ledger: Ledger) -> None:
    due = time.time() + 0.3
    result = app.tasks["note"].apply_async(countdown=0.3)
    wait_until(lambda: ledger.has([result.id]), "the task ran", 20)
    assert ledger.verdict({result.id: due * 1000}) == ALL_WELL


def number_of_loops(client: redis.Redis) -> int:
    """How many transfer loops are connected."""
    ((_channel, number),) = client.pubsub_numsub("delayq:queues")
    return int(number)


@pytest.mark.parametrize("delayqs", [1, 2])
def test_one_loop_runs_however_often_delayq_was_made(
    broker_server: Server, broker_url: str, ledger: Ledger, app: Celery, broker_client: redis.Redis, delayqs: int
) -> None:
    """On a cluster, one for each master."""
    expected = len(broker_server.cluster.masters()) if isinstance(broker_server, ClusterServer) else 1
    with Worker(broker=broker_url, ledger=ledger.url, conf={"delayqs": delayqs}, stops=True):
        runs_delayed_tasks(app, ledger)
        wait_until(lambda: number_of_loops(broker_client) >= expected, "all are connected")
        assert number_of_loops(broker_client) == expected
    assert number_of_loops(broker_client) == 0


@of_one_server
@pytest.mark.parametrize("delayqs", [0, 1])
def test_broker_transport_with_a_redis_url(
    broker_server: PrivateRedis, ledger: Ledger, broker_client: redis.Redis, delayqs: int
) -> None:
    options = {"delayqs": delayqs, "broker_transport": OURS}
    with publisher(broker_server.url, ledger.url, **options) as app:
        result = app.tasks["note"].apply_async(countdown=60)
        assert DelayedQueue(broker_client, "celery").cancel(result.id) == 1
        with Worker(broker=broker_server.url, ledger=ledger.url, conf=options):
            runs_delayed_tasks(app, ledger)
            assert number_of_loops(broker_client) == 1


@of_one_server
def test_a_worker_whose_broker_is_not_ours_is_told(broker_server: PrivateRedis, ledger: Ledger) -> None:
    with Worker(broker=broker_server.url, ledger=ledger.url) as worker:
        worker.wait_for_log("DelayQ(app) has no effect: the broker URL is redis://")
        worker.wait_for_log("of workers. Start the URL with delayq:// instead of redis://.")


@pytest.mark.one_server("it has another broker")
def test_a_worker_whose_broker_is_not_even_redis_runs_tasks(tmp_path: Path, ledger: Ledger) -> None:
    """Its prefork pool is the one without an event loop, which this broker does not know."""
    options = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path), "control_folder": str(tmp_path)}
    conf = {"broker_transport_options": options}
    with (
        publisher("filesystem://", ledger.url, **conf) as app,
        Worker(broker="filesystem://", ledger=ledger.url, conf=conf, pool="prefork", concurrency=1),
    ):
        assert app.tasks["note"].delay("done").get(timeout=20) == "done"


@of_one_server
def test_and_that_periodic_tasks_do_not_run(broker_server: PrivateRedis, ledger: Ledger) -> None:
    with Worker(broker=broker_server.url, ledger=ledger.url, conf={"beat_scheduler": "delayq"}) as worker:
        worker.wait_for_log("scheduler needs a delayq:// broker, but the broker URL is redis://")
        worker.wait_for_log(". Start the URL with delayq:// instead of redis://.")


@no_server
def test_delayq_twice_makes_each_step_once() -> None:
    app = Celery("twice", broker="delayq://", set_as_current=False)
    DelayQ(app)
    DelayQ(app)
    assert {step.rpartition(":")[2] for step in app.steps["consumer"]} == {"Plan", "Transfer"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt option": (
        {"broker_transport_options": {"mirorr_list": True}},
        r"'mirorr_list' in broker_transport_options: did you mean 'mirror_list'",
    ),
    "option of a wrong type": (
        {"broker_transport_options": {"mirror_list": "yes"}},
        r"broker_transport_options['mirror_list'] must be True or False, not 'yes'",
    ),
    "misspelt setting": (
        {"delayq_transfer_grase": 1},
        "delayq_transfer_grase: did you mean delayq_transfer_grace?",
    ),
    "setting of a wrong type": (
        {"delayq_transfer_batch_size": "many"},
        "delayq_transfer_batch_size must be a whole number, not 'many'",
    ),
    "misspelt scheduler": (
        {"beat_scheduler": "celery_delayq.beat:Sheduler"},
        "beat_scheduler must be celery_delayq.beat:Scheduler, not celery_delayq.beat:Sheduler",
    ),
}


@no_server
@pytest.mark.parametrize(("conf", "message"), WRONG.values(), ids=WRONG)
def test_a_worker_with_a_wrong_configuration_ends_and_says_what_is_wrong(
    broker_url: str, ledger: Ledger, conf: dict[str, Any], message: str
) -> None:
    with refused(broker=broker_url, ledger=ledger.url, conf=conf) as worker:
        assert message in worker.log


@no_server
def test_a_worker_of_sentinels_without_the_name_of_the_master_ends_and_says_so(ledger: Ledger) -> None:
    with refused(broker="delayq+sentinel://127.0.0.1:1/0", ledger=ledger.url) as worker:
        assert 'set app.conf.broker_transport_options = {"master_name": "mymaster"}' in worker.log
        assert "IndexError" not in worker.log


@no_server
@pytest.mark.parametrize(
    ("broker", "message"),
    [
        ("redis+socket:///tmp/redis.sock", "write delayq+socket://"),
        ("rediss://:secret@127.0.0.1:1/0", "write delayqs://, and leave broker_transport out"),
        ("delayqs://:secret@127.0.0.1:1/0", "write delayqs://, and leave broker_transport out"),
        ("redis://127.0.0.1:1/0;redis://127.0.0.1:2/0", "write delayq:// (or delayqs://) in each"),
    ],
)
def test_urls_that_would_lead_past_our_transport_are_refused(ledger: Ledger, broker: str, message: str) -> None:
    with refused(broker=broker, ledger=ledger.url, conf={"broker_transport": OURS}) as worker:
        assert message in worker.log


@no_server
def test_urls_that_would_lead_past_our_transport_are_refused_in_a_list_too() -> None:
    app = Celery("urls", set_as_current=False)
    for transport, scheme, instead in ((OURS, "redis", "delayq"), (SentinelTransport, "sentinel", "delayq\\+sentinel")):
        app.conf.update(broker_url=[f"{scheme}://a", f"{scheme}://b"], broker_transport=transport)
        with pytest.raises(ConfigurationError, match=f"when it fails over .* write {instead}://"):
            settings_of(app)


@contextmanager
def refused(**arguments: Any) -> Iterator[Worker]:
    """A worker that ended by itself, with an error."""
    worker = Worker(**arguments)
    worker.start()
    try:
        assert worker.wait() != 0
        assert " ready." not in worker.log
        yield worker
    finally:
        worker.__exit__()


@of_one_server
def test_options_of_kombu_and_redis_py_pass_through(broker_server: PrivateRedis) -> None:
    options = {
        "visibility_timeout": 60,
        "socket_timeout": 5,
        "health_check_interval": 10,
        "max_connections": 7,
        "fanout_patterns": True,
        "client_name": "passed-through",
    }
    url = f"delayq://127.0.0.1:{broker_server.port}/0"
    with Connection(url, transport_options=options) as connection:
        channel = connection.default_channel
        assert channel.visibility_timeout == 60
        assert channel.max_connections == 7
        assert channel.plain_client.client_getname() == "passed-through"


NAMESPACED = """
from celery import Celery
from celery_delayq import DelayQ
from tests import worker_app

class Settings:
    CELERY_BROKER_URL = {broker!r}
    CELERY_RESULT_BACKEND = {ledger!r}
    CELERY_DELAYQ_TRANSFER_GRACE = {grace!r}

app = Celery("namespaced")
delayq = DelayQ(app)
app.config_from_object(Settings, namespace="CELERY")
worker_app.add_tasks(app, worker_app.Ledger({ledger!r}))
"""


class TestNamespace:
    """Django style: `config_from_object(..., namespace="CELERY")`, after `DelayQ(app)`."""

    def worker(self, folder: Path, broker: str, ledger: str, grace: float) -> dict[str, Any]:
        text = NAMESPACED.format(broker=broker, ledger=ledger, grace=grace)
        (folder / "namespaced.py").write_text(text)
        return {"app": "namespaced", "broker": broker, "ledger": ledger, "paths": [folder]}

    def test_our_settings_are_found(self, tmp_path: Path, broker_url: str, ledger: Ledger, app: Celery) -> None:
        with Worker(**self.worker(tmp_path, broker_url, ledger.url, grace=0.5)):
            runs_delayed_tasks(app, ledger)

    @no_server
    def test_and_checked(self, tmp_path: Path, broker_url: str, ledger: Ledger) -> None:
        with refused(**self.worker(tmp_path, broker_url, ledger.url, grace=-1)) as worker:
            assert "delayq_transfer_grace must be 0.01 to 60, not -1" in worker.log


def test_a_server_that_may_lose_tasks_is_reported_at_start(
    broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    broker_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with Worker(broker=broker_url, ledger=ledger.url) as worker:
            name = name_and_version(broker_client.info("server")).partition(" ")[0]
            worker.wait_for_log(f"WARNING/MainProcess] {name} has maxmemory-policy allkeys-lru")
            worker.wait_for_log(f"WARNING/MainProcess] {name} has no persistence")
    finally:
        broker_client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.one_server("a cluster has several addresses")
def test_a_worker_says_at_its_start_what_it_is_and_what_it_uses(
    broker_server: PrivateRedis, broker_url: str, ledger: Ledger
) -> None:
    conf = {"broker_transport_options": {"lease": 60.0, "delivery_limit": 20}, "delayq_transfer_grace": 0.5}
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf) as worker:
        with broker_server.client() as client:
            server = name_and_version(client.info("server"))
        worker.wait_for_log(
            f"INFO/MainProcess] celery_delayq {__version__} with {server} at 127.0.0.1:{broker_server.port}. "
            "Options that differ from the defaults: lease 60.0, delayq_transfer_grace 0.5."
        )


def test_an_option_that_nothing_reads_is_reported_at_start(broker_url: str, ledger: Ledger) -> None:
    conf = {"broker_transport_options": {"visibilty_timeout": 60}}
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf) as worker:
        worker.wait_for_log(
            "WARNING/MainProcess] Unknown option 'visibilty_timeout' in broker_transport_options: nothing reads it. "
            "Did you mean 'visibility_timeout'?"
        )

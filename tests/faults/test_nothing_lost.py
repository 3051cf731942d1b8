"""A short form of the soak test: every fault strikes real workers at work, and nothing is lost.

The long form is `python -m tests.soak`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.private_redis import PrivateRedis
from tests.soak.cluster import ClusterScene, strike_with
from tests.soak.faults import FAULTS
from tests.soak.soak import run

#: How long each publishes.
_SECONDS = 3.0

#: Within so many seconds, the messages of a killed worker run again; the rest is the noise of a busy machine. Far from
#: a lease, which is 30 s here.
_RECOVERED_S, _NOISE_S = 3.0, 5.0

#: The same where there are periodic tasks: one of them runs every ten seconds.
_PERIODIC_SECONDS = 12.0

#: Only in the long form: the same as `kill-prefork`, for longer; and what strikes in random order.
_TOO_LONG = {"recovery", "cluster"}

#: What strikes a cluster, in parts that are as long.
_OF_A_CLUSTER = (
    ("master killed", "short hang", "failover"),
    ("both killed", "cut"),
    ("long hang", "slots"),
)


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in _TOO_LONG])
def test_fault(name: str, redis_server: PrivateRedis) -> None:
    """Duplicates are only tasks that were running in a process that was killed, or lost its lease."""
    if name == "refused-loading" and _major(redis_server) < 7:
        pytest.skip("Redis 6.2 has no option that makes it load slowly and answer meanwhile")
    result = run(FAULTS[name], _PERIODIC_SECONDS if FAULTS[name].setting.has_periodic else _SECONDS)
    verdict = result.verdict
    assert verdict.sure
    if not FAULTS[name].may_lose:
        assert verdict.lost == set(), result.traces
    assert verdict.early == set()
    assert result.complaints == []
    assert verdict.unexplained == set(), result.traces
    if name.startswith("kill-"):
        assert verdict.most_late_s < _RECOVERED_S + _NOISE_S
    else:
        assert verdict.cut_off == set() or name in ("full-stop", "crash-loop", "poison", "periodic-killed")
    if name == "out-of-memory":
        assert verdict.refused
        # In doubt are only those of pairs with one key, of which one runs: every error is a refusal.
        assert all("maxmemory" in error for error in result.errors)


def _major(server: PrivateRedis) -> int:
    with server.client() as client:
        return int(client.info("server")["redis_version"].partition(".")[0])


@pytest.mark.parametrize("names", _OF_A_CLUSTER, ids=", ".join)
def test_faults_of_a_cluster(names: tuple[str, ...]) -> None:
    """Nodes are killed and replaced, hang and are cut off, and slots move: what was confirmed runs."""

    def strike(scene: ClusterScene, number: int) -> None:
        for name in names:
            strike_with(scene, name)

    result = run(replace(FAULTS["cluster"], strike=strike), _SECONDS)
    assert result.verdict.sure
    assert result.verdict.lost == set(), result.traces
    assert result.verdict.early == set()
    assert result.complaints == []
    assert result.verdict.unexplained == set(), result.traces

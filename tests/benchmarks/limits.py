"""Limits: what redis-benchmark reaches with bare commands, beside the scripts of this package that take their place."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import replace
from functools import partial

import redis

from celery_delayq.queue import keys, scripts
from celery_delayq.queue.delayed_queue import BATCH_SIZE
from examples.private_redis import PrivateRedis
from tests.benchmarks.figures import OURS, in_turns
from tests.benchmarks.filling import PAYLOAD_BYTES
from tests.benchmarks.report import Report
from tests.benchmarks.scale import Scale

BARE = "bare commands"

_PING, _LPUSH, _RPOP = "PING", "LPUSH", "RPOP"
_STORE, _STORE_MANY = "a delayed message (ZADD)", "many delayed messages at once (ZADD)"
_MOVE = "from set to list (ZPOPMIN and LPUSH)"

#: Replaced by redis-benchmark with twelve digits, each time with others; they are below the number after `-r`.
_RANDOM, _BELOW = "__rand_int__", 2_000_000_000

_PIPELINE = 100
_TIMEOUT_S = 120

_KEYS = keys.QueueKeys.of("celery")
_PAYLOAD = "x" * PAYLOAD_BYTES


def run(scale: Scale) -> Report:
    report = Report(f"limits: {PAYLOAD_BYTES}-byte messages, one connection of redis-benchmark, no Python")
    tool = find_tool()
    if tool is None:
        report.notes.append("left out: there is no redis-benchmark (apt-get install redis-tools, brew install redis)")
        return report
    with PrivateRedis() as server, server.client() as client:
        bench = RedisBenchmark(tool, server.port)
        turns = {
            BARE: partial(_bare, bench, client, scale.limit_calls),
            OURS: partial(_ours, bench, client, scale.limit_calls),
        }
        results = in_turns(scale.limit_rounds, turns)
    for name in (_PING, _LPUSH, _RPOP, _STORE, _STORE_MANY, _MOVE):
        figure = report.figure(name, "calls/s" if name in (_PING, _LPUSH, _RPOP) else "messages/s", baseline=BARE)
        for variant, found in results.items():
            for rates in found if name in found[0] else ():
                figure.add(variant, rates[name])
    report.notes += [
        f"{OURS}: offer.lua instead of ZADD, offer_many.lua ({scripts.MAX_OFFERS} messages a call) instead of "
        f"ZADDs, transfer.lua ({BATCH_SIZE} messages a call) instead of ZPOPMIN and LPUSH.",
        f"Pipelines have {_PIPELINE} commands; ZPOPMIN and LPUSH are sent in pipelines.",
    ]
    return report


def find_tool() -> str | None:
    """Return the path of redis-benchmark, or of Valkey's; None if there is none."""
    return shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")


class RedisBenchmark:
    """redis-benchmark with one connection.

    Args:
        tool: its path.
        port: of a local server.
    """

    def __init__(self, tool: str, port: int) -> None:
        self._command = [tool, "-p", str(port), "-c", "1", "-r", str(_BELOW), "--csv"]

    def rate(self, calls: int, *command: object, pipeline: int = 1) -> float:
        """Return how many such commands a second the server answers; raises RuntimeError if it does not."""
        options = ["-n", str(calls), "-P", str(pipeline), *map(str, command)]
        done = subprocess.run([*self._command, *options], capture_output=True, text=True, timeout=_TIMEOUT_S)
        rows = list(csv.reader(done.stdout.splitlines()))
        if done.returncode or not rows or len(rows[-1]) < 2:
            raise RuntimeError(f"redis-benchmark failed: {done.stdout}{done.stderr}")
        return float(rows[-1][1])


def _bare(bench: RedisBenchmark, client: redis.Redis, calls: int) -> dict[str, float]:
    client.flushall()
    many = _PIPELINE * max(1, 5 * calls // _PIPELINE)
    member = _PAYLOAD[: -len(_RANDOM)] + _RANDOM
    rates = {
        _PING: bench.rate(calls, "PING"),
        _LPUSH: bench.rate(calls, "LPUSH", "list", _PAYLOAD),
        _RPOP: bench.rate(calls, "RPOP", "list"),
        _STORE: bench.rate(calls, "ZADD", "set", _RANDOM, member),
        _STORE_MANY: bench.rate(many, "ZADD", "set", _RANDOM, member, pipeline=_PIPELINE),
    }
    popped = bench.rate(many, "ZPOPMIN", "set", pipeline=_PIPELINE)
    pushed = bench.rate(many, "LPUSH", "list", _PAYLOAD, pipeline=_PIPELINE)
    return {**rates, _MOVE: 1 / (1 / popped + 1 / pushed)}


def _ours(bench: RedisBenchmark, client: redis.Redis, calls: int) -> dict[str, float]:
    client.flushall()
    many = max(1, 5 * calls // _PIPELINE)
    return {
        _STORE: bench.rate(calls, *offering(client)),
        _STORE_MANY: scripts.MAX_OFFERS * bench.rate(many, *offering_many(client)),
        _MOVE: BATCH_SIZE * bench.rate(many, *transferring(client)),
    }


def offering(client: redis.Redis) -> list[object]:
    call = scripts.offer(
        _KEYS, due_ms=0, message_key=f"key-{_RANDOM}".encode(), payload=_PAYLOAD.encode(), mirrored=False
    )
    client.script_load(call.script.text)
    texts = [one.decode() if isinstance(one, bytes) else one for one in call.args]
    return [*replace(call, args=[_RANDOM, *texts[1:]]).by_digest()]


def offering_many(client: redis.Redis) -> list[object]:
    call = scripts.offer_many(_KEYS, messages=[], mirrored=False)
    message = (_RANDOM, f"key-{_RANDOM}", _PAYLOAD)
    client.script_load(call.script.text)
    return [*call.by_digest(), *message * scripts.MAX_OFFERS]


def transferring(client: redis.Redis) -> list[object]:
    call = scripts.transfer(_KEYS, limit=BATCH_SIZE, transferrer="", grace_ms=0, lead_ms=0)
    client.script_load(call.script.text)
    return [*call.by_digest()]

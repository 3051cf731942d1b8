"""The scene: a broker, two workers, a publisher, a ledger with a Redis of its own, and who was hurt when."""

from __future__ import annotations

import math
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from celery_delayq.queue.keys import QueueKeys
from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.sentinel import DOWN_AFTER_MS, MASTER_NAME, Replicated, replicated, set_down_after
from tests.soak.logs import strange_tracebacks
from tests.soak.looks import (
    answers,
    busy,
    ended,
    is_known,
    is_lasting,
    is_replica,
    is_replicated,
    leases,
    master_port,
)
from tests.soak.periodic import add_entries, judge_periodic, periodic_conf, remove_entries
from tests.soak.proxy import Proxy
from tests.soak.publisher import CLIENT_NAME, Publisher
from tests.soak.setting import Setting
from tests.soak.verdict import Harm, Verdict, judge
from tests.support import lasting_keys, wait_until
from tests.worker_app import publisher as publishing_app
from tests.workers import Worker

#: Stock's visibility timeout, in seconds: longer than any task is held, and small enough to see its end.
_STOCK_TIMEOUT_S = 8

#: How long a replica lacks what is written, in seconds: a worker reads each second what the master has.
_LAG_S = 2.0

#: How far a replica may be behind on a busy machine, in seconds.
_BEHIND_S = 1.0

_FAILED_OVER = "Redis failed over: "
_BYTES_LOST = re.compile(r"At least \d+ bytes of replication are lost")

#: A process of a pool that goes on begins what it had just been given, within so many seconds.
_GIVEN_S = 0.5

#: After a refusal, workers write what it kept them from, such as acknowledgements, within so many seconds.
_WRITTEN_S = 3.0


class Scene:
    """All of it, running for as long as the `with` block lasts.

    Attributes:
        broker: the server in use.
        workers: two of them, which share the load.
        harms: who was hurt, and when.
        poisoned: marks of messages that have to be dead letters in the end.
        suspect: marks of further messages that may be.
        absent_s: how long there was no worker, at the longest.
        failovers: how many times the replica was promoted.
        losses: how many of these times it lacked something for sure.
        history: what was done when, a line each.
        failed: what did not happen, see `noting`.
        queues: what workers consume.
    """

    queues: Sequence[str] = ("celery",)

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.harms: list[Harm] = []
        self.poisoned: set[str] = set()
        self.suspect: set[str] = set()
        self.absent_s = 0.0
        self.failovers = 0
        self.losses = 0
        self.history: list[str] = []
        self.failed: list[str] = []
        self._begun_s = time.time()
        self._flushed_s = 0.0
        self._refused_s = (0.0, 0.0)
        self._replicated: Replicated | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Scene:
        with ExitStack() as stack:
            ledger_server = stack.enter_context(PrivateRedis())
            self.ledger = Ledger(ledger_server.url)
            stack.callback(self.ledger.client.close)
            url, *workers_urls = self._start_broker(stack)
            self.workers = [self._worker(worker_url) for worker_url in workers_urls]
            for worker in self.workers:
                stack.callback(worker.__exit__)
                worker.start()
            for worker in self.workers:
                worker.wait_until_ready()
            self.app = stack.enter_context(publishing_app(url, self.ledger.url, **self._conf(client_name=CLIENT_NAME)))
            if self.setting.has_periodic:
                add_entries(self.app)
            self.publisher = stack.enter_context(self._publisher())
            self._stack = stack.pop_all()
        return self

    def _start_broker(self, stack: ExitStack) -> list[str]:
        """Start the servers; return the broker URLs of the publisher and of each worker."""
        self._replicated = stack.enter_context(self._servers()) if self.setting.has_sentinel else None
        self.broker = (
            self._replicated.master if self._replicated else stack.enter_context(_durable_redis(*self.setting.server))
        )
        self.proxy = Proxy(self.broker.port)
        stack.callback(self.proxy.close)
        url = self._url(self.broker.port)
        return [url, self._url(self.proxy.port) if self.setting.has_proxy else url, url]

    def _publisher(self) -> Publisher:
        return Publisher(self.app, self.setting.rate, has_options=not self.setting.is_stock)

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @contextmanager
    def _servers(self) -> Iterator[Replicated]:
        with tempfile.TemporaryDirectory(prefix="delayq-sentinel-") as folder, replicated(Path(folder)) as servers:
            yield servers

    def _url(self, port: int) -> str:
        scheme = "redis" if self.setting.is_stock else "delayq"
        if self._replicated is None:
            return f"{scheme}://127.0.0.1:{port}/0"
        return self._replicated.url.replace(
            "delayq+sentinel", "sentinel" if self.setting.is_stock else "delayq+sentinel"
        )

    def _conf(self, **options: Any) -> dict[str, Any]:
        if self.setting.is_stock:
            options["visibility_timeout"] = _STOCK_TIMEOUT_S
        else:
            options["lease"] = self.setting.lease_s
            options["delivery_limit"] = self.setting.delivery_limit
            options["replicas"] = self.setting.replicas
            options.update(self.setting.transport)
        if self._replicated is not None:
            options["master_name"] = MASTER_NAME
        planning = periodic_conf() if self.setting.has_periodic else {}
        return {"delayqs": int(not self.setting.is_stock), "broker_transport_options": options, **planning}

    def _worker(self, url: str) -> Worker:
        return Worker(
            *("-Q", ",".join(self.queues)),
            *self.setting.options,
            pool=self.setting.pool,
            broker=url,
            ledger=self.ledger.url,
            conf=self._conf(),
        )

    # -- what faults do

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A client of the broker."""
        with self.broker.client() as client:
            yield client

    def say(self, what: str) -> None:
        """Take down what is done now."""
        self.history.append(f"after {time.time() - self._begun_s:6.1f} s: {what}")

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Go on if what is waited for does not happen, and complain in the end."""
        try:
            yield
        except AssertionError as exc:
            self.failed.append(str(exc)[:3000])

    def cut(self, wanted: Callable[[dict[str, Any]], bool] = lambda line: True) -> None:
        """Close the connections of workers that a predicate picks by their line in CLIENT LIST, by default all."""
        with self.client() as client:
            own_id = client.client_id()
            for line in client.client_list():
                if line["name"] != CLIENT_NAME and int(line["id"]) != own_id and wanted(line):
                    client.client_kill_filter(_id=line["id"])

    def flush(self) -> None:
        """Delete everything in the database of the workers. What was published before may be lost."""
        with self.client() as client:
            client.flushdb()
        self._flushed_s = time.time()

    def replace_children(self) -> None:
        """Wait until each worker has another child; its option `--max-tasks-per-child` sees to that."""
        before = {worker.pid: worker.session() for worker in self.workers}
        with self.noting():
            wait_until(lambda: all(it.session() - before[it.pid] for it in self.workers), "tasks replace children", 60)

    def kill(self, workers: Sequence[Worker], *, with_broker: bool = False) -> None:
        """Kill all processes of some workers."""
        with self._harming(workers, kills=True):
            if with_broker:
                self.broker.kill()
            for worker in workers:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.kill()

    def start(self, workers: Sequence[Worker]) -> None:
        """Start workers that were killed; returns when they consume."""
        counts = [worker.log.count(" ready.") for worker in workers]
        for worker in workers:
            worker.start()
        for worker, count in zip(workers, counts, strict=True):
            worker.wait_for_log(" ready.", times=count + 1)

    @contextmanager
    def suspended(self, worker: Worker) -> Iterator[None]:
        """Suspend all processes of a worker."""
        with self._harming([worker]):
            worker.suspend()
        try:
            yield
        finally:
            worker.resume()
            if self.setting.pool == "prefork":
                resumed_s = time.time()
                self.harms.append(Harm(frozenset({worker.pid}), resumed_s, resumed_s + _GIVEN_S))

    def revive(self) -> None:
        """Start workers that a task has killed, as a supervisor would."""
        gone = [worker for worker in self.workers if worker.has_ended]
        pids = {worker.pid for worker in gone}
        for execution in self.ledger.executions():
            if execution.task_id in self.poisoned and execution.worker in pids:
                begin_s = execution.started_s
                self.harms.append(Harm(frozenset({execution.worker}), begin_s, time.time(), killed_s=begin_s))
        self.start(gone)

    def dead(self) -> list[bytes]:
        """Return the dead letters."""
        with self.client() as client:
            return list(client.hvals(QueueKeys.of("celery").records))

    def occupy(self, worker: Worker, seconds: float) -> None:
        """Submit tasks that take so long until one of them runs in a worker."""

        def where(task_id: str) -> list[int]:
            return [execution.worker for execution in self.ledger.executions() if execution.task_id == task_id]

        while True:
            task_id = self.publisher.submit_long(seconds)
            wait_until(lambda: where(task_id), "a task begins", 60)  # noqa: B023
            if where(task_id) == [worker.pid]:
                return

    def cut_off(self, worker: Worker) -> None:
        """Take down that a worker is cut off from now on, for longer than its lease.

        Until the lease ends, it may begin what it holds, and nobody hears its acknowledgements.
        """
        now_s = time.time()
        self.harms.append(Harm(frozenset({worker.pid}), now_s, now_s + self.setting.lease_s))

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Take down that the broker refuses writes: whoever is killed shortly after has not acknowledged since.

        Nor since the refusal before, if this one follows shortly after it.
        """
        begin_s = self._unwritten_since(time.time())
        yield
        self._refused_s = begin_s, time.time()

    def _unwritten_since(self, now_s: float) -> float:
        """Return since when workers may not have acknowledged: a refusal was over only just now, or there was none."""
        since_s, until_s = self._refused_s
        return since_s if now_s < until_s + _WRITTEN_S else now_s

    @contextmanager
    def _harming(self, workers: Sequence[Worker], *, kills: bool = False) -> Iterator[None]:
        now_s = time.time()
        begin_s, killed_s = self._unwritten_since(now_s), now_s if kills else math.inf
        yield
        self.harms.append(Harm(frozenset(worker.pid for worker in workers), begin_s, time.time(), killed_s))

    def fail_over(self) -> None:
        """Let Sentinel promote the replica, which lacks nothing; the old master is started again by the next call."""
        assert self._replicated is not None
        other = self._replica()
        with self.client() as client, self._patient_sentinel():
            wait_until(lambda: is_replicated(client), "the replica has everything")
        self._promote(other)

    def fail_over_suddenly(self, *, lagging: bool) -> None:
        """Let Sentinel promote the replica, which may lack something, and lacks something if it is `lagging`.

        A task may run again if what the replica lacks is that it ran.
        """
        other = self._replica()
        begin_s = time.time()
        if lagging:
            os.kill(other.pid, signal.SIGSTOP)
            with self.client() as client:  # otherwise it would read what is in the socket when it goes on
                client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            time.sleep(_LAG_S)
        self._promote(other)
        self.losses += lagging
        self.harms.append(Harm(frozenset(worker.pid for worker in self.workers), begin_s - _BEHIND_S, time.time()))
        if not self.setting.is_stock:
            with suppress(AssertionError):  # the complaints tell
                wait_until(lambda: all(it.log.count(_FAILED_OVER) >= self.failovers for it in self.workers), "said", 20)

    def fail_over_as_planned(self) -> None:
        """Let Sentinel promote the replica while the old master is alive, which goes on as a replica in the end.

        Tasks that are sent to the old master meanwhile are lost. What workers did there is done again.
        """
        other = self._replica()
        begin_s = time.time()
        with self._sentinel() as sentinel:
            sentinel.execute_command("SENTINEL FAILOVER", MASTER_NAME)
            wait_until(lambda: master_port(sentinel) == other.port, "Sentinel names the new master", 60)
        with self.client() as old:
            wait_until(lambda: is_replica(old), "the old one is a replica", 60)
        self.broker = other
        self.failovers += 1
        self.harms.append(Harm(frozenset(worker.pid for worker in self.workers), begin_s - _BEHIND_S, time.time()))

    def _replica(self) -> PrivateRedis:
        """Return the server that is not the master, running and up to date."""
        assert self._replicated is not None
        servers = [self._replicated.master, self._replicated.replica]
        (other,) = [server for server in servers if server is not self.broker]
        with self.client() as client:
            if not answers(other):  # it was killed
                other.start()
                with other.client() as replica:
                    replica.replicaof("127.0.0.1", self.broker.port)
            wait_until(lambda: client.role()[2], "the other one follows", 30)
            wait_until(lambda: is_known(self._sentinel, other.port), "Sentinel knows that", 30)
        return other

    @contextmanager
    def _sentinel(self) -> Iterator[redis.Redis]:
        assert self._replicated is not None
        with self._replicated.sentinel.client() as sentinel:
            yield sentinel

    @contextmanager
    def _patient_sentinel(self) -> Iterator[None]:
        """Let Sentinel not take a master for dead whose writes are paused: it waits there with what it publishes."""
        with self._sentinel() as sentinel:
            set_down_after(sentinel, 60_000)
            yield
            set_down_after(sentinel, DOWN_AFTER_MS)

    def _promote(self, other: PrivateRedis) -> None:
        """Kill the master; returns when Sentinel names the other server."""
        self.broker.kill()
        with suppress(ProcessLookupError):
            os.kill(other.pid, signal.SIGCONT)
        # Not before: an old master that is back while Sentinel still names it takes what is lost later.
        with self._sentinel() as sentinel:
            wait_until(lambda: master_port(sentinel) == other.port, "Sentinel names the new master", 60)
        self.broker = other
        self.failovers += 1

    # -- the end

    def verdict(self) -> Verdict:
        """Return what became of the tasks so far."""
        # The ledger's lists in this order: what has begun was accepted before.
        executions, acceptances = self.ledger.executions(), self.ledger.acceptances()
        return judge(self.publisher.bookings, executions, acceptances, self.harms, self._flushed_s)

    def traces(self, task_ids: Collection[str]) -> list[str]:
        """Return a line for each of these tasks: what is known of it, and where its message is."""
        bookings = [booking for booking in self.publisher.bookings if booking.task_id in task_ids]
        executions, acceptances = self.ledger.executions(), self.ledger.acceptances()
        lines = []
        for booking in bookings:
            known = [it for it in (*executions, *acceptances) if it.task_id == booking.task_id]
            lines.append(f"{booking}; {known or 'never accepted'}; in {self._places(booking.task_id) or 'no list'}")
        return lines

    def _places(self, task_id: str) -> list[str]:
        with self.client() as client:
            lists = list(client.scan_iter(count=1000, _type="list"))
            return [
                name.decode(errors="replace")
                for name in lists
                if any(task_id.encode() in message for message in client.lrange(name, 0, -1))
            ]

    def drain(self, timeout_s: float, *, may_lose: bool = False) -> None:
        """Publish nothing more, and wait until all tasks have run, and the broker holds no message."""
        self.publisher.stop()
        if self.setting.has_periodic:
            remove_entries(self.app)
        with suppress(AssertionError):  # the verdict tells
            wait_until(lambda: self._is_drained(may_lose), "all have run", timeout_s)

    def _is_drained(self, may_lose: bool) -> bool:
        time.sleep(0.2)  # the ledger is long
        is_over = any(worker.has_ended for worker in self.workers)  # the complaints tell
        return is_over or ((may_lose or not self.verdict().lost) and self._is_settled())

    def _is_settled(self) -> bool:
        with self.client() as client:
            if client.exists("celery", "unacked", QueueKeys.of("celery").timeout_set) or any(
                client.scan_iter("delayq:inflight:*", count=1000)
            ):
                return False
            return self.setting.is_stock or len(leases(client, QueueKeys.of("celery").consumers)) == len(self.workers)

    def complaints(self) -> list[str]:
        """Return what is wrong besides tasks: workers that ended by themselves or were silent, and dead letters."""
        found = [*ended(self.workers), *busy(self.workers), *self.failed]
        if self.setting.has_periodic:
            found += judge_periodic(self.ledger, self.harms)
        if not self.setting.is_stock:
            for worker in self.workers:
                seen, lossy = worker.log.count(_FAILED_OVER), len(_BYTES_LOST.findall(worker.log))
                if seen != self.failovers or lossy < self.losses:
                    found.append(f"{self.failovers} failovers, {self.losses} lossy: a worker saw {seen} and {lossy}")
        dead = self.dead()
        for mark in sorted(self.poisoned):
            if (count := sum(mark.encode() in letter for letter in dead)) != 1:
                found.append(f"a message that should be a dead letter is {count} of them: {mark}")
        known = [mark.encode() for mark in self.poisoned | self.suspect]
        found += [f"a dead letter: {letter!r}" for letter in dead if not any(mark in letter for mark in known)]
        return found

    def stop_workers(self) -> list[str]:
        """Stop the workers as an administrator would; return the tracebacks that they should not have written."""
        for worker in self.workers:
            if not worker.has_ended:
                worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait()
        return [traceback for worker in self.workers for traceback in strange_tracebacks(worker.log)]

    def leftovers(self) -> set[str]:
        """Return all keys in the broker that should not be there once everything has stopped, and what hashes hold.

        Dead letters are not among them, see `complaints`. That a consumer was given up may be remembered for a minute.
        """
        with self.client() as client:
            left = {key for key in lasting_keys(client) if not is_lasting(client, key)}
            return {f"{key}: {client.hgetall(key)}" if client.type(key) == b"hash" else key for key in left}


def _durable_redis(*options: str) -> PrivateRedis:
    return PrivateRedis("--appendonly", "yes", "--appendfsync", "always", *options)

"""Collector: a snapshot as metrics of Prometheus. docs/monitor.md says what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from celery_delayq.fetching.held import DEAD_LETTERS, LOST_LEASES, RECOVERED
from celery_delayq.fetching.recovery import REASONS
from celery_delayq.metrics.recorder import MISSED_RUNS, PUNCTUAL_WORKER_CHANGES
from celery_delayq.metrics.snapshot import WITHIN_S, Snapshot
from celery_delayq.queue import dead_letter, histograms
from celery_delayq.queue.connections import process_of
from celery_delayq.queue.histograms import START_LATENESS, TRANSFER_LATENESS, TRANSFERRED
from celery_delayq.queue.measuring import Measured

_QUEUE = "queue_name"
_ENTRY = ("entry", _QUEUE)

#: The numbers of one queue: those of its lists, one for each priority in use.
_Lists = Sequence[Measured]


def _sum(number: Callable[[Measured], int]) -> Callable[[_Lists], int]:
    return lambda lists: sum(map(number, lists))


def _consumers(lists: _Lists) -> int:
    return len({name for one in lists for name, ends_ms in one.leases.items() if ends_ms > one.now_ms})


def _oldest_overdue_s(lists: _Lists) -> float:
    oldest_ms = max((one.now_ms - one.head_due_ms for one in lists if one.head_due_ms is not None), default=0)
    return max(0, oldest_ms) / 1000


def _next_due_s(lists: _Lists) -> float | None:
    return min((one.head_due_ms / 1000 for one in lists if one.head_due_ms is not None), default=None)


#: Gauges of a queue: name, help, value; None for no sample.
_GAUGES: tuple[tuple[str, str, Callable[[_Lists], float | None]], ...] = (
    ("delayq_ready_messages", "Messages that workers can fetch.", _sum(lambda one: one.ready)),
    ("delayq_delayed_messages", "Messages that wait, overdue ones included.", _sum(lambda one: one.delayed)),
    ("delayq_overdue_messages", "Messages that are due, but not transferred yet.", _sum(lambda one: one.overdue)),
    (
        "delayq_in_flight_messages",
        "Messages fetched and not acknowledged.",
        _sum(lambda one: sum(one.in_flight.values())),
    ),
    ("delayq_dead_messages", "Dead letters.", _sum(lambda one: one.dead)),
    (
        "delayq_oldest_overdue_age_seconds",
        "How long the oldest overdue message has been due; 0 if none is overdue.",
        _oldest_overdue_s,
    ),
    ("delayq_next_due_timestamp_seconds", "When the next message is due; no sample if none waits.", _next_due_s),
    ("delayq_consumers", "Consumers whose leases last.", _consumers),
    (
        "delayq_ended_leases",
        "Leases that have ended, and whose messages are not recovered yet.",
        _sum(lambda one: sum(0 < ends_ms <= one.now_ms for ends_ms in one.leases.values())),
    ),
)

#: Counters of a queue: name, help, what was counted.
_COUNTERS = (
    ("delayq_transferred_messages", "Messages that were due and moved to their queue.", TRANSFERRED),
    ("delayq_lost_leases", "Leases that others took from a worker that was silent for too long.", LOST_LEASES),
    (
        "delayq_punctual_worker_changes",
        "How often another worker became the one that transfers punctually.",
        PUNCTUAL_WORKER_CHANGES,
    ),
)

#: Counters of a queue by reason: name, help, beginning of what was counted, reasons. Each has a sample from the start:
#: the first increase of one that appears with it would not be seen.
_BY_REASON = (
    ("delayq_recovered_messages", "Messages put back because their worker was gone.", RECOVERED, REASONS),
    ("delayq_dead_letters", "Messages that were set aside.", DEAD_LETTERS, dead_letter.DEAD),
)

_HISTOGRAMS = (
    ("delayq_transfer_lateness_seconds", "How late messages moved to their queue.", TRANSFER_LATENESS),
    ("delayq_start_lateness_seconds", "How late delayed tasks began to run.", START_LATENESS),
)


class SnapshotCollector(Collector):
    """Yields the metrics of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics, see prometheus_client."""
        queues = dict(sorted(self._snapshot.queues.items()))
        yield from _of_queues(queues)
        paused = GaugeMetricFamily("delayq_paused", "1 if workers fetch nothing from a queue, else 0.", labels=[_QUEUE])
        for name in queues:
            paused.add_metric([name], int(name in self._snapshot.paused))
        yield paused
        # A total that lacks a part of the queue would fall: Prometheus would take that for a restart.
        totals = {name: _totals(lists) for name, lists in queues.items() if name not in self._snapshot.unreadable}
        yield from _of_workers(totals)
        yield from self._of_entries(totals)
        unreadable = len(self._snapshot.unreadable)
        yield GaugeMetricFamily("delayq_unreadable_queues", "Queues that the server refuses to read.", unreadable)
        if self._snapshot.nodes:
            up = GaugeMetricFamily("delayq_node_up", "Whether a node of the cluster answers.", labels=["node"])
            for node, answers in sorted(self._snapshot.nodes.items()):
                up.add_metric([node], int(answers))
            yield up
        yield GaugeMetricFamily("delayq_scrape_duration_seconds", "How long reading took.", self._snapshot.seconds)

    def _of_entries(self, totals: dict[str, Counter[str]]) -> Iterator[Metric]:
        entries = [(entry, [entry.name, entry.queue or ""]) for entry in self._snapshot.entries]
        following = GaugeMetricFamily(
            "delayq_periodic_next_run_timestamp_seconds", "When a periodic task runs next.", labels=_ENTRY
        )
        last = GaugeMetricFamily(
            "delayq_periodic_last_run_timestamp_seconds", "When a periodic task was last due.", labels=_ENTRY
        )
        runs = CounterMetricFamily("delayq_periodic_runs", "How often a periodic task was sent.", labels=_ENTRY)
        error = GaugeMetricFamily(
            "delayq_periodic_error", "1 if a periodic task cannot be planned, else 0.", labels=_ENTRY
        )
        for entry, labels in entries:
            _add_time(following, labels, entry.next_run)
            _add_time(last, labels, entry.last_run)
            runs.add_metric(labels, entry.runs)
            error.add_metric(labels, int(entry.error is not None))
        missed = CounterMetricFamily(
            "delayq_periodic_missed", "Runs of a periodic task that were missed and not made up for.", labels=_ENTRY
        )
        # As with reasons: each has a sample from the start. There is no total of a queue whose node is away.
        names = {entry.name for entry, _ in entries}
        numbers = {(name, queue): 0 for _, (name, queue) in entries if queue in totals}
        for queue, counted in totals.items():
            runs_of = {what.removeprefix(MISSED_RUNS): what for what in counted if what.startswith(MISSED_RUNS)}
            numbers.update({(name, queue): counted[runs_of[name]] for name in sorted(runs_of.keys() & names)})
        for of_entry, number in numbers.items():
            missed.add_metric(list(of_entry), number)
        yield from (following, last, runs, error, missed)


def _totals(lists: _Lists) -> Counter[str]:
    """Return what workers have counted so far for a queue."""
    totals: Counter[str] = Counter()
    for one in lists:
        totals.update(one.totals)
    return totals


def _of_queues(queues: dict[str, list[Measured]]) -> Iterator[Metric]:
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=[_QUEUE])
        for queue, lists in queues.items():
            number = value(lists)
            if number is not None:
                gauge.add_metric([queue], number)
        yield gauge
    due = GaugeMetricFamily(
        "delayq_due_messages",
        "Messages that become due within so many seconds, or are overdue.",
        labels=[_QUEUE, "within"],
    )
    punctual = InfoMetricFamily(
        "delayq_punctual_worker", "The worker that transferred last, as node:process.", labels=[_QUEUE]
    )
    for queue, lists in queues.items():
        for place, within_s in enumerate(WITHIN_S):
            due.add_metric([queue, str(within_s)], sum(one.due[place] for one in lists if one.due))
        processes = {process_of(one.punctual) for one in lists if one.punctual}
        for worker in sorted(host if pid is None else f"{host}:{pid}" for host, pid in processes):
            punctual.add_metric([queue], {"worker": worker})
    yield from (due, punctual)


def _of_workers(totals: dict[str, Counter[str]]) -> Iterator[Metric]:
    for name, text, what in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=[_QUEUE])
        for queue, counted in totals.items():
            counter.add_metric([queue], counted[what])
        yield counter
    for name, text, prefix, reasons in _BY_REASON:
        counter = CounterMetricFamily(name, text, labels=[_QUEUE, "reason"])
        for queue, counted in totals.items():
            for reason in reasons:
                counter.add_metric([queue, reason], counted[prefix + reason])
        yield counter
    for name, text, what in _HISTOGRAMS:
        histogram = HistogramMetricFamily(name, text, labels=[_QUEUE])
        for queue, counted in totals.items():
            histogram.add_metric([queue], *histograms.read(what, counted))
        yield histogram


def _add_time(gauge: GaugeMetricFamily, labels: list[str], when: datetime | None) -> None:
    if when is not None:
        gauge.add_metric(labels, when.timestamp())


def registry_of(snapshot: Snapshot) -> CollectorRegistry:
    """Return a registry with the metrics of a snapshot and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    return registry


def text_of(snapshot: Snapshot) -> str:
    """Return the metrics of a snapshot in Prometheus' text format."""
    return generate_latest(registry_of(snapshot)).decode()

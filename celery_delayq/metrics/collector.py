"""Collector: a snapshot as metrics of Prometheus. docs/metrics.md says what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from celery_delayq.metrics import histograms
from celery_delayq.metrics.recorder import (
    MISSED_RUNS,
    PUNCTUAL_WORKER_CHANGES,
    START_LATENESS,
    TRANSFER_LATENESS,
    TRANSFERRED,
)
from celery_delayq.metrics.snapshot import WITHIN_S, Queue, Snapshot
from celery_delayq.queue import dead_letters
from celery_delayq.queue.connections import process_of

_QUEUE = "queue_name"
_ENTRY = ("entry", _QUEUE)

#: Gauges of a queue: name, help, value; None for no sample.
_GAUGES: tuple[tuple[str, str, Callable[[Queue], float | None]], ...] = (
    ("delayq_ready_messages", "Messages that workers can fetch.", lambda queue: queue.ready),
    ("delayq_delayed_messages", "Messages that wait, overdue ones included.", lambda queue: queue.delayed),
    ("delayq_overdue_messages", "Messages that are due, but not transferred yet.", lambda queue: queue.overdue),
    ("delayq_in_flight_messages", "Messages fetched and not acknowledged.", lambda queue: queue.in_flight),
    ("delayq_dead_messages", "Dead letters.", lambda queue: queue.dead),
    (
        "delayq_oldest_overdue_age_seconds",
        "How long the oldest overdue message has been due; 0 if none is overdue.",
        lambda queue: queue.oldest_overdue_s,
    ),
    (
        "delayq_next_due_timestamp_seconds",
        "When the next message is due; no sample if none waits.",
        lambda queue: None if queue.next_due_ms is None else queue.next_due_ms / 1000,
    ),
    ("delayq_consumers", "Consumers whose leases last.", lambda queue: len(queue.lasting)),
    ("delayq_ended_leases", "Leases that ended, whose messages nobody recovered yet.", lambda queue: queue.ended),
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
    ("delayq_dead_letters", "Messages that were set aside.", DEAD_LETTERS, dead_letters.REASONS),
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
        # A total that lacks a part of the queue would fall: Prometheus would take that for a restart.
        counted = {name: queue for name, queue in queues.items() if name not in self._snapshot.unreadable}
        yield from _of_workers(counted)
        yield from self._of_entries(counted)
        unreadable = len(self._snapshot.unreadable)
        yield GaugeMetricFamily("delayq_unreadable_queues", "Queues that the server refuses to read.", unreadable)
        if self._snapshot.nodes:
            up = GaugeMetricFamily("delayq_node_up", "Whether a node of the cluster answers.", labels=["node"])
            for node, answers in sorted(self._snapshot.nodes.items()):
                up.add_metric([node], int(answers))
            yield up
        yield GaugeMetricFamily("delayq_scrape_duration_seconds", "How long reading took.", self._snapshot.seconds)

    def _of_entries(self, queues: dict[str, Queue]) -> Iterator[Metric]:
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
        numbers = {(name, queue): 0 for _, (name, queue) in entries if queue in queues}
        for queue, counted in queues.items():
            of_queue = _with_prefix(counted, MISSED_RUNS)
            numbers.update({(name, queue): number for name, number in of_queue if name in names})
        for of_entry, number in numbers.items():
            missed.add_metric(list(of_entry), number)
        yield from (following, last, runs, error, missed)


def _of_queues(queues: dict[str, Queue]) -> Iterator[Metric]:
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=[_QUEUE])
        for queue, numbers in queues.items():
            number = value(numbers)
            if number is not None:
                gauge.add_metric([queue], number)
        yield gauge
    due = GaugeMetricFamily(
        "delayq_due_messages",
        "Messages that become due within so many seconds, or are overdue.",
        labels=[_QUEUE, "within"],
    )
    punctual = InfoMetricFamily(
        "delayq_punctual_worker", "The worker that transferred last, as host:process.", labels=[_QUEUE]
    )
    for queue, numbers in queues.items():
        for within_s in WITHIN_S:
            due.add_metric([queue, str(within_s)], numbers.due[within_s])
        processes = map(process_of, numbers.punctual)
        for worker in sorted({host if pid is None else f"{host}:{pid}" for host, pid in processes}):
            punctual.add_metric([queue], {"worker": worker})
    yield from (due, punctual)


def _of_workers(queues: dict[str, Queue]) -> Iterator[Metric]:
    for name, text, what in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=[_QUEUE])
        for queue, numbers in queues.items():
            counter.add_metric([queue], numbers.totals[what])
        yield counter
    for name, text, prefix, reasons in _BY_REASON:
        counter = CounterMetricFamily(name, text, labels=[_QUEUE, "reason"])
        for queue, numbers in queues.items():
            for reason in reasons:
                counter.add_metric([queue, reason], numbers.totals[prefix + reason])
        yield counter
    for name, text, what in _HISTOGRAMS:
        histogram = HistogramMetricFamily(name, text, labels=[_QUEUE])
        for queue, numbers in queues.items():
            buckets, total_s = histograms.read(what, numbers.totals)
            histogram.add_metric([queue], buckets, total_s)
        yield histogram


def _with_prefix(numbers: Queue, prefix: str) -> list[tuple[str, int]]:
    return sorted((what.removeprefix(prefix), n) for what, n in numbers.totals.items() if what.startswith(prefix))


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

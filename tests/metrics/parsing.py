"""The metrics as Prometheus' own parser reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from celery_delayq.metrics.collector import text_of
from celery_delayq.metrics.snapshot import Snapshot


@dataclass(frozen=True)
class Metrics:
    """Samples: name and labels -> value."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def get(self, name: str, queue: str | None = "celery", **labels: str) -> float | None:
        """Return the value of a sample of a queue; None if there is none."""
        wanted = labels if queue is None else {**labels, "queue_name": queue}
        return self.samples.get((name, frozenset(wanted.items())))

    def named(self, name: str) -> list[dict[str, str]]:
        """Return the labels of all samples of a name."""
        return [dict(labels) for found, labels in self.samples if found == name]


def parsed(text: str) -> Metrics:
    """Return the metrics in a text."""
    families = list(text_string_to_metric_families(text))
    return Metrics({(one.name, frozenset(one.labels.items())): one.value for it in families for one in it.samples})


class Scrape:
    """Reads the metrics when it is called."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def __call__(self) -> Metrics:
        return parsed(text_of(self._read()))

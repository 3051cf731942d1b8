"""Workers: a row for each, with its queues, its leases, and what it holds; and a page of the latter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from celery_delayq.inspector.consumers import Consumer, Lease, consumers
from celery_delayq.inspector.held import held
from celery_delayq.web.access import Refusal
from celery_delayq.web.request import Response
from celery_delayq.web.view import Page, View

#: The most tasks that a page shows.
_MOST = 100


@dataclass(frozen=True)
class Worker:
    """A worker, or another program that fetches messages: a process, which may have several consumers.

    Attributes:
        name: name of its node, and the id of its process.
        consumers: its consumers.
    """

    name: str
    consumers: tuple[Consumer, ...]

    @property
    def node(self) -> str:
        """Name of its node, as Celery has it."""
        return self.consumers[0].node

    @property
    def pid(self) -> int | None:
        """Id of its process; None if nobody knows it."""
        return self.consumers[0].pid

    @property
    def queues(self) -> list[str]:
        """Names of the queues that it consumes, sorted."""
        return sorted({queue for one in self.consumers for queue in one.queues})

    @property
    def in_flight(self) -> int:
        """Number of messages that it holds."""
        return sum(one.in_flight for one in self.consumers)

    @property
    def leases(self) -> dict[str, datetime]:
        """States of its leases, of which it renews and loses all at once as a rule; each with the first end of one."""
        found: dict[str, datetime] = {}
        for lease in (lease for one in self.consumers for lease in one.leases):
            state = _state(lease)
            found[state] = min(lease.ends, found.get(state, lease.ends))
        return found

    @property
    def punctual_for(self) -> list[str]:
        """Names of the queues to which it moved due messages last, sorted."""
        return sorted({lease.queue for one in self.consumers for lease in one.leases if lease.is_punctual})


def _state(lease: Lease) -> str:
    return "given up" if lease.is_given_up else "lasts" if lease.is_lasting else "ended"


def workers_of(found: Iterable[Consumer]) -> list[Worker]:
    """Return the workers whose consumers these are, by their names."""
    by_name: defaultdict[str, list[Consumer]] = defaultdict(list)
    for one in found:
        by_name[one.node if one.pid is None else f"{one.node}:{one.pid}"].append(one)
    return [Worker(name, tuple(by_name[name])) for name in sorted(by_name)]


def _show(view: View) -> Response:
    with view.broker.inspector() as inspector:
        found = consumers(inspector.lists, partial=True)
    return view.page("workers.html", at=found.at, lost=found.lost, workers=workers_of(found.consumers), is_live=True)


def _show_one(view: View) -> Response:
    name = view.request.query.get("name")
    with view.broker.inspector() as inspector:
        found = consumers(inspector.lists, partial=True)
        worker = next((one for one in workers_of(found.consumers) if one.name == name), None)
        if worker is None:
            raise Refusal(404, "There is no such worker.")
        tasks = held(inspector.lists, worker.consumers, _MOST)
    return view.page("worker.html", at=found.at, lost=found.lost, worker=worker, tasks=tasks)


PAGE = Page("/workers", _show)
ONE = Page("/worker", _show_one)

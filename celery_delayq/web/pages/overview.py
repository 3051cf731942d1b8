"""Overview: the queues, what will become due and when, and what was transferred lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery_delayq.basics.errors import UnknownQueue
from celery_delayq.basics.times import shown_span, to_ms
from celery_delayq.inspector import Inspector
from celery_delayq.inspector.consumers import Consumers, consumers
from celery_delayq.inspector.counts import QueueCounts, count
from celery_delayq.inspector.histogram import Bucket, Histogram, histogram
from celery_delayq.inspector.history import History
from celery_delayq.web.access import Refusal
from celery_delayq.web.audit import Change
from celery_delayq.web.charts import Chart, bar_chart, labels_between, nice_time
from celery_delayq.web.rendering import lateness
from celery_delayq.web.request import Response, encoded
from celery_delayq.web.view import Page, View

_HOUR_S, _DAY_S = 3600, 86400

#: Spans that the histogram offers, in seconds, and how many bars each has.
SPANS = {_HOUR_S: 60, _DAY_S: 96, 7 * _DAY_S: 84, 30 * _DAY_S: 60, 365 * _DAY_S: 73}

#: The last second that a window may begin at: the end of the year 9000.
_LATEST_MS = 221_845_392_000_000

#: The most queues that the table shows.
_MOST_QUEUES = 500

#: Hours that the history offers.
_HISTORIES = (8, 72)


def _show(view: View, done: Any = None) -> Response:
    query = view.request.query
    span_s = _whole(query.get("span"), _HOUR_S, _HOUR_S, 365 * _DAY_S)
    start_ms = _whole(query.get("from"), 0, 0, _LATEST_MS)
    hours = 72 if query.get("hours") == "72" else 8
    with view.broker.inspector() as inspector:
        counts = count(inspector.lists, span=1, buckets=1, partial=True)
        due = histogram(inspector.lists, start_ms or _ms(counts.at), span_s, SPANS.get(span_s, 60), partial=True)
        workers = consumers(inspector.lists, partial=True)
        past = view.broker.history(inspector, hours)
    return view.page(
        "overview.html",
        counts=counts,
        most_queues=_MOST_QUEUES,
        has_nodes=any(queue.node for queue in counts.queues),
        totals=_totals(counts.queues),
        span=span_s,
        start=start_ms,
        spans=_spans(view),
        due=due,
        due_chart=_due_chart(view, due, span_s),
        link_of=lambda bucket: _href(bucket, span_s),
        consumers=_consumers(workers),
        alone=_alone(counts.queues, workers),
        earlier=max(_ms(counts.at), _ms(due.buckets[0].start) - span_s * 1000) if start_ms else None,
        later=_ms(due.buckets[-1].end),
        hours=hours,
        histories=_HISTORIES,
        past=past,
        past_charts=_past_charts(view, past),
        message=done,
        is_live=not done,
    )


def _pause(view: View) -> Response:
    return _change(view, Inspector.pause, view._("Paused."))


def _resume(view: View) -> Response:
    return _change(view, Inspector.resume, view._("Resumed."))


def _change(view: View, change: Callable[[Inspector, str], bool], done: Any) -> Response:
    queue = view.request.form.get("queue")
    with view.broker.inspector() as inspector:
        try:
            changed = change(inspector, queue)
        except UnknownQueue as exc:
            raise Refusal(404, "There is no such queue.") from exc
    view.audit(Change(view.request.form.get("action"), queue, int(changed), int(not changed)))
    return _show(view, done)


PAGE = Page("/", _show, {"queue.pause": _pause, "queue.resume": _resume})


def _whole(text: str, default: int, least: int, most: int) -> int:
    return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 20 else default


def _totals(queues: Sequence[QueueCounts]) -> dict[str, int]:
    names = ("ready", "delayed", "overdue", "in_flight", "dead", "failed")
    return {name: sum(getattr(queue, name) for queue in queues) for name in names}


def _consumers(found: Consumers) -> Counter[str]:
    """Return how many consumers with a lease that lasts each queue has."""
    return Counter(
        queue for consumer in found.consumers for queue in {each.queue for each in consumer.leases if each.is_lasting}
    )


def _alone(queues: Sequence[QueueCounts], found: Consumers) -> frozenset[str]:
    """Return the queues with ready or delayed tasks that nobody consumes: these will not run."""
    known = {*_consumers(found), *(lost.queue for lost in found.lost.queues)}
    return frozenset(one.queue for one in queues if (one.ready or one.delayed) and one.queue not in known)


def _spans(view: View) -> list[tuple[int, Any]]:
    words = (view._("1 hour"), view._("1 day"), view._("7 days"), view._("30 days"), view._("1 year"))
    return list(zip(SPANS, words, strict=True))


def _ms(when: datetime) -> int:
    return to_ms(when, "when")


def _href(bucket: Bucket, span_s: int) -> str:
    """Return where a bar leads: to a narrower histogram, or to the list of what is due then."""
    if span_s > _HOUR_S:
        length_s = int((bucket.end - bucket.start).total_seconds())
        return f"./?{encoded({'from': _ms(bucket.start), 'span': max(_HOUR_S, length_s)})}#due"
    times = {"due_after": _iso(bucket.start), "due_before": _iso(bucket.end)}
    return f"waiting?{encoded(times)}"


def _iso(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds")


def _due_chart(view: View, due: Histogram, span_s: int) -> Chart:
    buckets = due.buckets
    titles = [
        view._(
            "%(count)s due from %(start)s to %(end)s UTC",
            count=f"{bucket.count:,}",
            start=_text(bucket.start, span_s),
            end=_text(bucket.end, span_s),
        )
        for bucket in buckets
    ]
    return bar_chart(
        [bucket.count for bucket in buckets],
        titles,
        labels_between(buckets[0].start, buckets[-1].end),
        hrefs=[_href(bucket, span_s) for bucket in buckets],
        unit=_short_number,
    )


def _text(when: datetime, span_s: float) -> str:
    """Return a time in UTC, as exactly as the span asks for."""
    if span_s <= _HOUR_S:
        return when.strftime("%H:%M")
    return when.strftime("%m-%d %H:%M" if span_s <= 7 * _DAY_S else "%Y-%m-%d")


def _short_number(value: float) -> str:
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:g}{letter}"
    return f"{value:g}"


def short_time(seconds: float) -> str:
    """Return a round time in one unit."""
    return lateness(seconds) if seconds < 60 else shown_span(timedelta(seconds=seconds)).split()[0]


def _past_charts(view: View, past: History) -> tuple[Chart, Chart]:
    """Return the charts of what was transferred, and of how late that was."""
    points = past.points
    span_s = (points[-1].end - points[0].start).total_seconds()
    starts = [_text(point.start, span_s) for point in points]
    counts, late = [point.transferred for point in points], [point.p95_s for point in points]
    counts_said = [
        view._("%(count)s from %(start)s UTC on", count=f"{count:,}", start=start)
        for count, start in zip(counts, starts, strict=True)
    ]
    late_said = [
        view._("%(late)s from %(start)s UTC on", late=lateness(late_s), start=start)
        for late_s, start in zip(late, starts, strict=True)
    ]
    for said in (counts_said, late_said):
        said[-1] = view._("%(said)s, so far", said=said[-1])
    labels = labels_between(points[0].start, points[-1].end)
    return (
        bar_chart(counts, counts_said, labels, unit=_short_number, is_last_open=True),
        bar_chart(late, late_said, labels, unit=short_time, rounded=nice_time, is_last_open=True),
    )

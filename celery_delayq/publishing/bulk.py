"""Send thousands of tasks in a few round trips."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from celery.canvas import Signature, _chain, _chord, group, maybe_signature
from celery.result import AsyncResult
from celery.utils import uuid
from redis.exceptions import RedisError, ResponseError

from celery_delayq.basics.errors import NotAllSent
from celery_delayq.basics.text import plural
from celery_delayq.publishing.naive import warn_of_naive
from celery_delayq.publishing.template import PublishedTemplate, key_of
from celery_delayq.transport import connected, is_in_memory
from celery_delayq.transport.batch import Batch, collecting
from celery_delayq.transport.producer import Producer
from celery_delayq.transport.replicas import NotReplicated

#: Maximum size of a round trip, in bytes. The last task may exceed it.
_CHUNK_BYTES = 4 * 1024 * 1024

#: Maximum number of cached templates; the oldest is dropped first. Tasks may all have different options.
_MOST_TEMPLATES = 256


def apply_async_many(
    app: Any, signatures: Iterable[Signature], chunk_size: int, results: bool
) -> list[AsyncResult] | int:
    """Send many tasks in one round trip; see `DelayQ.apply_async_many`."""
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"chunk_size must be a whole number, 1 or more, not {chunk_size!r}")
    if app.conf.task_always_eager or is_in_memory(app):
        sent = (_single(app, signature).apply_async() for signature in signatures)
        return list(sent) if results else sum(1 for _ in sent)
    with connected(app) as channel, collecting(channel) as batch:
        producer = Producer(channel, auto_declare=False)
        sender = _Sender(app, producer, batch, chunk_size, results)
        sender.send(signatures)
        return sender.results if results else sender.sent


def _single(app: Any, given: Any) -> Signature:
    """Return the signature of one task.

    Raises:
        TypeError: `given` is not a signature, or it is the signature of several tasks.
    """
    signature = maybe_signature(given, app=app) if isinstance(given, dict) else None  # a Signature is a dict
    if signature is None or isinstance(signature, (_chain, _chord, group)):
        raise TypeError(
            f"apply_async_many() needs signatures of single tasks, like task.s(...).set(countdown=...), not {given!r}"
        )
    return signature


@dataclass
class _Collected:
    """A task in the batch: the number of commands up to its end, and its result if the caller wants one.

    It is not new if another task holds its unique key.
    """

    signature: Signature
    task_id: str
    result: AsyncResult | None
    end: int
    is_new: bool

    def identified(self) -> Signature:
        """Return a copy of the signature that includes the task id."""
        return self.signature.clone().set(task_id=self.task_id)


class _Sender:
    """Sends signatures chunk by chunk, and keeps track of what happened to each."""

    def __init__(self, app: Any, producer: Any, batch: Batch, chunk_size: int, with_results: bool) -> None:
        self.sent = 0
        self.results: list[AsyncResult] = []
        self._app = app
        self._producer = producer
        self._batch = batch
        self._client = producer.channel.batch_client
        self._chunk_size = chunk_size
        self._with_results = with_results
        self._chunk: list[_Collected] = []
        #: `key_of` the tasks -> their template.
        self._templates: dict[Hashable, PublishedTemplate] = {}
        #: The error that ended the chunk: a task that cannot be sent, with the reason; or an error of the iterable.
        self._bad: list[tuple[Any, Exception]] = []
        self._broken: Exception | None = None

    def send(self, signatures: Iterable[Any]) -> None:
        rest = iter(signatures)
        while self._collect_chunk(rest):
            self._flush()
        self._flush()

    def _collect_chunk(self, rest: Iterator[Any]) -> bool:
        """Collect a chunk. Return whether more may follow."""
        try:
            for given in rest:
                if not self._collect(given):
                    return False
                if len(self._chunk) >= self._chunk_size or self._batch.bytes >= _CHUNK_BYTES:
                    return True
        except Exception as exc:
            self._broken = exc
        return False

    def _collect(self, given: Any) -> bool:
        before = self._batch.size
        try:
            signature = _single(self._app, given)
            task_id = signature.options.get("task_id") or uuid()
            result = self._publish(signature, task_id)
        except Exception as exc:
            self._batch.truncate(before)
            self._bad.append((given, exc))
            return False
        if result is not None:
            task_id = result.id  # a custom `apply_async` may have chosen another id
        kept = result if self._with_results else None
        self._chunk.append(_Collected(signature, task_id, kept, self._batch.size, getattr(result, "was_new", True)))
        return True

    def _publish(self, signature: Signature, task_id: str) -> AsyncResult | None:
        key = key_of(signature)
        template = self._templates.get(key)
        if template is not None and template.has(signature):
            warn_of_naive(signature.options.get("eta"), self._app)
            return template.send(signature, task_id, self._with_results)
        self._producer.published = {}
        options = {} if self._with_results else {"add_to_parent": False}
        result = signature.apply_async(producer=self._producer, task_id=task_id, retry=False, **options)
        template = PublishedTemplate.after(signature, task_id, self._producer)
        if template is not None:
            if len(self._templates) >= _MOST_TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[key] = template
        return result

    def _flush(self) -> None:
        """Send the chunk.

        Raises:
            NotAllSent: a task of the chunk was not sent, or an error ended the chunk.
        """
        chunk, self._chunk = self._chunk, []
        failed: list[tuple[Any, Exception]] = []
        uncertain: list[Signature] = []
        errors: list[Exception] = []
        try:
            outcomes = self._batch.send(self._client, self._producer.channel.must_replicate)
        except (RedisError, NotReplicated, OSError) as exc:
            uncertain += [task.identified() for task in chunk]
            errors.append(exc)
            chunk = []
        start = 0
        for task in chunk:
            refused = [error for error in outcomes[start : task.end] if error is not None]
            is_certain = len(refused) == task.end - start and all(isinstance(one, ResponseError) for one in refused)
            start = task.end
            errors += refused
            if not refused:
                self.sent += task.is_new
                if task.result is not None:
                    self.results.append(task.result)
            elif is_certain:
                failed.append((task.identified(), refused[0]))
            else:
                uncertain.append(task.identified())
        failed += self._bad
        errors += [error for _, error in self._bad]
        if self._broken is not None:
            errors.append(self._broken)
        if errors:
            cause = errors[0]
            raise NotAllSent(
                f"{_outcome(self.sent, len(failed), len(uncertain))} First error: {type(cause).__name__}: {cause}",
                sent=self.sent,
                results=self.results,
                failed=failed,
                uncertain=uncertain,
            ) from cause


def _outcome(sent: int, failed: int, uncertain: int) -> str:
    """Return what happened to the tasks, as a sentence."""
    first = f"{plural(sent, 'task was', 'tasks were')} sent" if sent else "No task was sent"
    failures = [f"{failed} failed"] if failed else []
    doubts = [f"{uncertain} {'is' if uncertain == 1 else 'are'} uncertain"] if uncertain else []
    *start, last = (first, *failures, *doubts)
    return f"{', '.join(start)}, and {last}." if start else f"{last}."

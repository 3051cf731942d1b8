"""Send thousands of tasks in a few round trips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.canvas import Signature, _chain, _chord, group, maybe_signature
from celery.result import AsyncResult
from celery.utils import uuid
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

from celery_delayq.config import require_transport
from celery_delayq.errors import NotAllSent
from celery_delayq.series import Series
from celery_delayq.transport.batch import Batch, collecting
from celery_delayq.transport.producer import Producer

#: Tasks a round trip, unless told otherwise.
CHUNK_SIZE = 1000

#: A round trip has no more bytes than this, but for those of the last task.
_CHUNK_BYTES = 4 * 1024 * 1024


def apply_async_many(app: Any, signatures: Iterable[Signature], chunk_size: int = CHUNK_SIZE) -> list[AsyncResult]:
    """Send tasks, many in one round trip; see `DelayQ.apply_async_many`."""
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"chunk_size must be a whole number, 1 or more, not {chunk_size!r}")
    if app.conf.task_always_eager:
        return [_single(app, signature).apply_async() for signature in signatures]
    with _producer(app) as producer, collecting(producer.channel) as batch:
        sender = _Sender(app, producer, batch, chunk_size)
        sender.send(signatures)
        return sender.results


@contextmanager
def _producer(app: Any) -> Iterator[Any]:
    with app.connection_or_acquire() as connection:
        require_transport(app, connection)
        try:
            connection.ensure_connection(max_retries=1)
        except connection.connection_errors as exc:
            raise OperationalError(f"cannot connect to {connection.as_uri()}: {exc}") from exc
        yield Producer(connection.default_channel, auto_declare=False)


def _single(app: Any, given: Any) -> Signature:
    """Return the signature of one task.

    Raises:
        TypeError: it is none, or that of several tasks.
    """
    signature = maybe_signature(given, app=app) if isinstance(given, dict) else None  # a Signature is a dict
    if signature is None or isinstance(signature, (_chain, _chord, group)):
        raise TypeError(
            f"apply_async_many() takes signatures of single tasks, task.s(...).set(countdown=...), not {given!r}"
        )
    return signature


class _Sender:
    """Sends signatures chunk by chunk, and knows what became of each."""

    def __init__(self, app: Any, producer: Any, batch: Batch, chunk_size: int) -> None:
        self.results: list[AsyncResult] = []
        self._app = app
        self._producer = producer
        self._batch = batch
        self._client = producer.channel.batch_client
        self._chunk_size = chunk_size
        #: Those in the batch: signature, result, and how many commands there are up to its end.
        self._chunk: list[tuple[Signature, AsyncResult, int]] = []
        #: By the name of the task, the last of each.
        self._series: dict[str, Series] = {}
        self._failed: list[tuple[Any, Exception]] = []
        self._uncertain: list[Signature] = []

    def send(self, signatures: Iterable[Any]) -> None:
        try:
            for given in signatures:
                if not self._collect(given):
                    break
                if len(self._chunk) >= self._chunk_size or self._batch.bytes >= _CHUNK_BYTES:
                    self._flush()
        except NotAllSent:
            raise
        except Exception as exc:  # of the iterable
            self._flush()
            raise NotAllSent(self.results) from exc
        self._flush()

    def _collect(self, given: Any) -> bool:
        before = self._batch.size
        try:
            signature = _single(self._app, given)
            task_id = signature.options.get("task_id") or uuid()
            result = self._publish(signature, task_id)
        except Exception as exc:
            self._batch.truncate(before)
            self._failed.append((given, exc))
            return False
        self._chunk.append((signature, result, self._batch.size))
        return True

    def _publish(self, signature: Signature, task_id: str) -> AsyncResult:
        series = self._series.get(signature.task)
        if series is not None and series.has(signature):
            return series.send(signature, task_id)
        self._producer.published = {}
        result = signature.apply_async(producer=self._producer, task_id=task_id, retry=False)
        series = Series.after(signature, task_id, self._producer)
        if series is not None:
            self._series[signature.task] = series
        return result

    def _flush(self) -> None:
        chunk, self._chunk = self._chunk, []
        cause: Exception | None = None
        try:
            outcomes = self._batch.send(self._client)
        except (RedisError, OSError) as exc:
            self._uncertain += [_identified(signature, result) for signature, result, _ in chunk]
            chunk, cause = [], exc
        start = 0
        for signature, result, end in chunk:
            outcome, start = outcomes[start:end], end
            refused = [error for error in outcome if isinstance(error, ResponseError)]
            if all(error is None for error in outcome):
                self.results.append(result)
            elif len(refused) == len(outcome):
                self._failed.append((_identified(signature, result), refused[0]))
            else:
                self._uncertain.append(_identified(signature, result))
                cause = cause or next(error for error in outcome if error is not None)
        if self._failed or self._uncertain:
            cause = cause or next((error for _, error in self._failed), None)
            raise NotAllSent(self.results, failed=self._failed, uncertain=self._uncertain) from cause


def _identified(signature: Signature, result: AsyncResult) -> Signature:
    """Return a copy of a signature that has the id of its task."""
    return signature.clone().set(task_id=result.id)

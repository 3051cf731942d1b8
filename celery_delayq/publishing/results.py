"""What a publisher asks of Redis result backends: nothing for a task, and for a chord no longer than it publishes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from celery_delayq.basics import deadline
from celery_delayq.options.settings import SOCKET_TIMEOUT_S
from celery_delayq.transport.known import known

#: What counts in a `retry_policy`, and what kombu takes if it is not there.
_POLICY = {"max_retries": None, "interval_start": 1, "interval_step": 1, "interval_max": 1}


def prepare_backends(app: Any) -> None:
    """Let the result backends that Celery makes for an app, and the one that it has made, do as `_prepared` says."""
    if app._backend is not None:
        app._backend = _prepared(lambda: app._backend)
    app._get_backend = partial(_prepared, app._get_backend)


def _prepared(get_backend: Callable[[], Any]) -> Any:
    """Return a backend. If it is one of Celery's for Redis, or ours, it keeps no publisher waiting while Redis is away.

    It subscribes to a result when somebody awaits it, not before its task is sent: Celery does both, and reads the
    result after the second. The first costs each task a command.

    For a chord, Celery subscribes to all of its header, and stores its size. So it looks first whether it can.

    All threads share the backend of an app that has none, as with `result_backend_thread_safe`: it keeps nothing, and
    Celery makes one for each greenlet.

    Source: Celery 5.7 `RedisBackend.on_task_call` and `apply_chord`, `AsyncBackendMixin.add_pending_result`.
    """
    from celery.backends.base import DisabledBackend  # a producer has it only now

    backend, module = get_backend(), sys.modules.get("celery.backends.redis")
    if type(backend) is DisabledBackend:
        backend.thread_safe = True
    if module is None or not isinstance(backend, module.RedisBackend):
        return backend
    own, its = module.RedisBackend, type(backend)
    if its.on_task_call is own.on_task_call:
        backend.on_task_call = _do_nothing
    backend.apply_chord = partial(_apply_chord, backend, backend.apply_chord)
    # Others may take no class: those of Sentinels have their own, and `redis.Redis` knows no such option.
    if its._create_client is own._create_client and its._get_pool is own._get_pool:
        kind = backend.connparams.get("connection_class", module.redis.Connection)
        backend.connparams["connection_class"] = known(kind)
    return backend


def _do_nothing(producer: Any, task_id: str) -> dict[str, Any]:
    return {}


def _apply_chord(backend: Any, apply_chord: Callable[..., None], header: Any, *args: Any, **kwargs: Any) -> None:
    """Prepare for the results of a chord, unless the server is away: Celery would try for 19 s, or wait two minutes.

    A worker's task waits as long as Celery does: nobody waits for its response, and it may have sent other tasks.

    Raises:
        kombu.exceptions.OperationalError: the server cannot be reached, or refuses. Nothing of the chord was sent.
    """
    if backend.app.current_worker_task is None or deadline.is_set():
        _ask(backend, backend.get_key_for_group(header[0], ".s"))
    apply_chord(header, *args, **kwargs)


def _ask(backend: Any, key: str) -> None:
    """Ask the server for a key, for as long as a message is published to a broker that is away.

    Raises:
        kombu.exceptions.OperationalError: the server cannot be reached, or refuses.
    """
    conf = backend.app.conf
    given = conf.task_publish_retry_policy if conf.task_publish_retry else {"max_retries": 0}
    longest_s = conf.broker_transport_options.get("socket_timeout") or SOCKET_TIMEOUT_S

    def ask() -> None:
        with deadline.within(longest_s):
            backend.get(key)

    def pause(exc: Exception, pauses: Iterator[float], number: int) -> float:
        pause_s = next(pauses)
        deadline.raise_rather_than_wait(exc, pause_s)
        return pause_s

    try:
        retry_over_time(
            ask,
            backend.connection_errors,
            errback=pause,
            **{name: given.get(name, default) for name, default in _POLICY.items()},
        )
    except (*backend.connection_errors, *backend.channel_errors) as exc:
        raise OperationalError(str(exc)) from exc

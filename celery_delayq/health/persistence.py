"""Whether a server keeps tasks over a restart."""

from __future__ import annotations

from collections.abc import Iterator

from celery_delayq.health.finding import Finding, error, not_checked, ok, warning
from celery_delayq.health.servers import Server


def check_persistence(server: Server) -> Iterator[Finding]:
    """Yield what a restart of the server loses."""
    info, name = server.info, server.software
    if not info:
        yield not_checked("the user may not call INFO")
        return
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            yield _failing(name, "write its append-only file")
        else:
            yield ok(f"{name} writes an append-only file.")
        return
    save = server.config("save")
    if save is None:
        yield not_checked("the user may not call CONFIG GET")
    elif not save:
        yield warning(
            f"{name} has no persistence (neither AOF nor snapshots): a restart loses all delayed tasks.",
            "Set `appendonly yes` to keep them.",
        )
    elif info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield _failing(name, "save a snapshot")
    else:
        yield ok(f"{name} saves snapshots; what came after the last one is lost in a crash.")


def _failing(name: str, what: str) -> Finding:
    return error(
        f"{name} could not {what}: a restart loses tasks, and it may refuse writes until it can.",
        "See its log; its disk may be full.",
    )

"""Program: what consumes from a connection, as the connection knows it: Celery's worker, or a program without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis

    from celery_delayq.basics.native import Errands
    from celery_delayq.queue.delayed_queue import DelayedQueue
    from celery_delayq.queue.scripts import Transferred


class Program:
    """A connection asks it, and tells it what happens. The answers here are those of a program without a worker.

    Attributes:
        fetches_ahead: whether to fetch more than one message at a time if there is no prefetch limit, and to deliver
            several in one turn of the event loop: it takes one after the other. Other programs may end, or do something
            else, after each.
        acknowledges_together: whether acknowledgements wait for each other, for a turn of an event loop that runs no
            task, or a few ms.
    """

    fetches_ahead: bool = False
    acknowledges_together: bool = False

    # -- what it is asked, in the thread that consumes

    def running_tags(self) -> set[str]:
        """Return the delivery tags of running tasks, which continue although the connection is closed."""
        return set()

    def tasks_waiting(self) -> int:
        """Return how many delivered tasks wait for a process of the pool because all processes are busy."""
        return 0

    def most_ahead(self) -> int:
        """Return how many messages may be there that are not due yet; 0 for any number."""
        return 0

    def is_busy(self) -> bool | None:
        """Return whether tasks run or are about to run, including acknowledged ones; None if it cannot tell.

        Then a message that is not acknowledged counts as a task that runs.
        """
        return None

    def may_wait(self, headers: dict[str, Any]) -> bool:
        """Return whether a task that was fetched long before its eta may wait in its delayed queue.

        Only a worker would hold such a task; other programs take every message.
        """
        return False

    def defect_of(self, message: dict[str, Any]) -> str | None:
        """Return what is wrong with a message that raised in its consumer's callback; None if nothing is wrong."""
        return None

    def late_defect_of(self, message: dict[str, Any]) -> str | None:
        """Do so for defects that would show too late, after the message was handed on; called before each delivery."""
        return None

    def forget(self, delivery_tag: str) -> bool:
        """Forget a message with a defect; return False if it will be acknowledged."""
        return True

    # -- what it is told, in threads of their own

    @cached_property
    def errands(self) -> Errands:
        """What it does in a thread of its own."""
        from celery_delayq.basics.native import Errands

        return Errands()

    def tell_dead(self, name: str, record: bytes) -> None:
        """Call `on_dead_letter`, in a thread of its own, since it may take long."""
        self.errands.add(partial(self.on_dead_letter, name, record))

    def on_dead_letter(self, name: str, record: bytes) -> None:
        """Hear of a message that is set aside: the name of its list, and the record of the dead letter."""
        return

    def on_count(self, name: str, what: str, number: int) -> None:
        """Hear of a list's name, what happened to its messages, and to how many; see `Redelivery.on_count`."""
        return

    # -- for its transfer loops, in their threads, see `TransferLoop`

    def may_transfer(self) -> bool:
        """Return whether they may begin."""
        return True

    def on_pass(self, queue: DelayedQueue, done: Transferred) -> None:
        """Hear of a script call and its result."""
        return

    def chores(self, client: redis.Redis, serves: Callable[[str], bool]) -> None:
        """Do what needs a connection, and can wait."""
        return

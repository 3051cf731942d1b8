"""Whether a job that a prefork child process was given may still begin: its worker says so, in memory that both share.

A child has the job in its hands before the worker knows that it begins. If both are suspended then for longer than the
lease, others take the message over; and a child that simply went on would run it a second time. So each job says until
when it was sure to be its worker's, and a child that begins it later waits for the verdict, which the worker gives when
it reads that the child has begun: some ms, for as long as both are well. A worker that lives and does not say it for a
minute (it has lost the job, or waits for a server that is away) is not waited for any longer: the child gives the job
up, and the worker does not accept it afterwards.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import Reject

#: Each child has a place of its own, by its process id, of which Linux has so many; memory is what is written to.
_PLACES = 2**22

#: How often a child looks for the verdict, and for how long, in seconds.
_LOOK_S, _LONGEST_WAIT_S = 0.001, 60.0

_verdicts: Verdicts | None = None


class Verdicts:
    """The verdicts of one worker, made before it forks its children. One thread gives them.

    A verdict is the number of a job, negative if it must not begin, so that a place needs not be cleared. A child has
    four places: for the verdict on the job that it begins, for what was foretold of the next, for the job on which its
    worker decides, and for the one that it gave up.
    """

    def __init__(self) -> None:
        self._parent = os.getpid()
        memory = memoryview(mmap.mmap(-1, 4 * 8 * _PLACES)).cast("q")
        self._given, self._foretold, self._decides, self._gave_up = (
            memory[at * _PLACES : (at + 1) * _PLACES] for at in range(4)
        )

    def begin(self, pid: int, number: int) -> bool:
        """Begin to decide whether a child may begin a job. The child waits from now on until the verdict is given.

        Args:
            pid: of the child.
            number: of the job, from 1.

        Returns:
            False if the child has given it up, or will now.
        """
        self._decides[pid % _PLACES] = number
        if self._gave_up[pid % _PLACES] != number:
            return True
        self.give(pid, number, may_begin=False)
        return False

    def give(self, pid: int, number: int, *, may_begin: bool, foretold: bool = False) -> None:
        """Say whether a child may begin a job.

        Args:
            pid: of the child.
            number: of the job.
            may_begin: the verdict.
            foretold: whether the child may be about to read that of another job.
        """
        (self._foretold if foretold else self._given)[pid % _PLACES] = number if may_begin else -number

    def wait(self, number: int) -> bool:
        """Return whether this child may begin a job, once its worker has said so.

        False if the worker has ended without, or has not even begun to decide for a minute.
        """
        place = os.getpid() % _PLACES
        until = time.monotonic() + _LONGEST_WAIT_S
        while True:
            has_parent = os.getppid() == self._parent
            for given in (self._given[place], self._foretold[place]):
                if abs(given) == number:
                    return bool(given > 0)
            if not has_parent:
                return False
            if self._gave_up[place] == number and self._decides[place] != number:
                return False
            if time.monotonic() >= until:
                # It looks once more, a sleep later: either the worker sees this before it decides, or it is seen here.
                self._gave_up[place] = number
            time.sleep(_LOOK_S)


def share_verdicts() -> Verdicts:
    """Return verdicts that children which this process forks from now on can read."""
    global _verdicts
    _verdicts = Verdicts()
    return _verdicts


class Job:
    """What a child calls instead of Celery's `trace` function. It is pickled with each job, and therefore small.

    Args:
        trace: Celery's function, which runs the task.
        number: of the job, from 1.
        sure_until: until when it was sure to be its worker's, on the monotonic clock, which all processes share.
    """

    __slots__ = ("number", "sure_until", "trace")

    def __init__(self, trace: Callable[..., Any], number: int, sure_until: float) -> None:
        self.trace = trace
        self.number = number
        self.sure_until = sure_until

    def __reduce__(self) -> tuple[type[Job], tuple[Callable[..., Any], int, float]]:
        return Job, (self.trace, self.number, self.sure_until)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task.

        Raises:
            Reject: it must not begin. The message is put back if it is still the worker's, and left alone if not.
        """
        # A child that was spawned and not forked shares nothing; it does what Celery does.
        if _verdicts is not None and time.monotonic() > self.sure_until and not _verdicts.wait(self.number):
            raise Reject("it is not this worker's any more", requeue=True)
        return self.trace(*args, **kwargs)

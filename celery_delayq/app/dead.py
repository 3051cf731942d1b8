"""What `DelayQ` does with dead letters and failed tasks: list, requeue and delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, TypedDict

from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.basics.times import Time
from celery_delayq.transport.threads import in_a_thread

if TYPE_CHECKING:  # what a producer does not need is imported by the method that needs it
    from typing_extensions import Unpack

    from celery_delayq.inspector import Inspector
    from celery_delayq.inspector.letters import DeadLetter, DeadPage, LetterCriteria
    from celery_delayq.transport.named import Named


class DeadFilters(TypedDict, total=False):
    """Selects dead letters.

    Attributes:
        reason: only those with this reason, see `DeadLetter`: `"failed"` for failed tasks.
        task: only calls of this task: the task, its name, or a signature.
        after: only those set aside at this time or later.
        before: only those set aside before this time.
        text: only those whose arguments or error contain this text, or whose id it is.
    """

    reason: str | None
    task: Named | None
    after: Time | None
    before: Time | None
    text: str | None


class Dead:
    """The methods of `DelayQ` for dead letters."""

    _inspector: Callable[[str], AbstractContextManager[Inspector]]
    _check_names: Callable[[Inspector, str | None, Named | None], None]

    @ends_in_time
    def dead(
        self,
        queue: str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        timeout: Timeout = None,
        **filters: Unpack[DeadFilters],
    ) -> DeadPage:
        """Return a page of dead letters and kept failed tasks: list by list, failed tasks last, the oldest first.

        A page ends after 1,000 examined letters. If few match, it may be short or empty; only its cursor tells whether
        there are more.

        Args:
            queue: only those of this queue.
            limit: maximum number of letters, 1 to 1,000.
            cursor: cursor of the previous page.
            timeout: see `DelayQ`.
            filters: see `DeadFilters`.

        Raises:
            ValueError: `limit`, the reason or a time is out of range, the text is empty, or `cursor` is not valid.
        """
        criteria = _criteria_of("dead", filters)
        with self._inspector("cannot list dead letters") as inspector:
            page = inspector.dead_letters(queue).page(cursor, limit, criteria.matches)
            if not (page.letters or cursor or page.cursor):
                self._check_names(inspector, queue, filters.get("task"))
            return page

    @ends_in_time
    def requeue_dead(
        self,
        letters: DeadLetter | Iterable[DeadLetter] | None = None,
        *,
        queue: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        timeout: Timeout = None,
        **filters: Unpack[DeadFilters],
    ) -> int:
        """Let tasks run again, under their own ids: their messages move to the backs of their queues.

        Their deliveries and retries count from zero again. A worker discards a task that has expired meanwhile. Atomic
        for each letter: what somebody else has requeued or deleted is left alone.

        Args:
            letters: some of a page. Or give criteria, for all that match, as many as there are now.
            queue: only those of this queue.
            everything: must be True if neither letters nor a criterion are given.
            dry_run: count the letters that match, but do not change them.
            timeout: see `DelayQ`.
            filters: see `DeadFilters`.

        Returns:
            How many were requeued. What is not a message cannot be, and stays.

        Raises:
            TypeError: letters were given with criteria or with `dry_run`.
            ValueError: neither was given, and `everything` is False; or see `dead`.
        """
        return self._change("requeue", letters, queue, everything, dry_run, filters)

    @ends_in_time
    def purge_dead(
        self,
        letters: DeadLetter | Iterable[DeadLetter] | None = None,
        *,
        queue: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        timeout: Timeout = None,
        **filters: Unpack[DeadFilters],
    ) -> int:
        """Delete dead letters for good; see `requeue_dead`. Returns how many were deleted."""
        return self._change("purge", letters, queue, everything, dry_run, filters)

    adead = in_a_thread(dead)
    arequeue_dead = in_a_thread(requeue_dead)
    apurge_dead = in_a_thread(purge_dead)

    def _change(
        self,
        action: Literal["requeue", "purge"],
        letters: DeadLetter | Iterable[DeadLetter] | None,
        queue: str | None,
        everything: bool,
        dry_run: bool,
        filters: DeadFilters,
    ) -> int:
        from celery_delayq.inspector.letters import change_all, change_some

        criteria = _criteria_of(f"{action}_dead", filters)
        has_criteria = queue is not None or bool(criteria) or everything
        if letters is not None and has_criteria:
            raise TypeError("give either letters or criteria")
        if letters is not None and dry_run:
            raise TypeError("dry_run counts the letters that match criteria: give no letters")
        if letters is None and not has_criteria:
            raise ValueError("give letters, a criterion, or everything=True")
        with self._inspector(f"cannot {action} dead letters") as inspector:
            if letters is not None:
                return change_some(inspector, action, letters)
            changed = change_all(inspector, action, queue, criteria, dry_run=dry_run)
            if not changed:
                self._check_names(inspector, queue, filters.get("task"))
            return changed


def _criteria_of(method: str, filters: DeadFilters) -> LetterCriteria:
    """Return the criteria for the filters of a public method.

    Raises:
        TypeError: there is no such filter, or one has the wrong type.
        ValueError: see `LetterCriteria.of`.
    """
    from celery_delayq.inspector.letters import LetterCriteria

    for name in filters.keys() - DeadFilters.__annotations__.keys():
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
    return LetterCriteria.of(**filters)

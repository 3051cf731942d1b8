"""Filters for dead letters, and what happens to many of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from celery_delayq.basics.times import Time, aware
from celery_delayq.inspector.inspector import Inspector
from celery_delayq.inspector.pages import OnProgress
from celery_delayq.queue.dead_letter import NOT_AN_ENTRY, REASONS
from celery_delayq.queue.dead_letter import DeadLetter as DeadLetter
from celery_delayq.queue.dead_letters import DeadChunk, DeadLetters
from celery_delayq.queue.dead_letters import DeadPage as DeadPage
from celery_delayq.transport.named import Named, name_of
from celery_delayq.transport.redelivery import revived


@dataclass(frozen=True)
class LetterCriteria:
    """Selects dead letters. Without any criterion, selects all.

    Attributes:
        reason: only those set aside for this reason.
        task: only tasks of this name.
        after: only those set aside at this time or later.
        before: only those set aside before this time.
        text: only tasks whose arguments or error contain this text, or whose id it is.
        task_part: only tasks whose name contains this text.
    """

    reason: str | None = None
    task: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    text: str | None = None
    task_part: str | None = None

    @classmethod
    def of(
        cls,
        *,
        reason: str | None = None,
        task: Named | None = None,
        after: Time | None = None,
        before: Time | None = None,
        text: str | None = None,
    ) -> LetterCriteria:
        """Return the criteria for public arguments.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: there is no such reason, a time is out of range, the text is empty, or the task is a signature
                with arguments.
        """
        for name, value in (("reason", reason), ("text", text)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str, not {value!r}")
        if reason is not None and reason not in REASONS:
            raise ValueError(f"reason must be one of {', '.join(REASONS)}, not {reason!r}")
        if text == "":
            raise ValueError("text must not be empty")
        return cls(
            reason,
            None if task is None else name_of(task),
            None if after is None else aware(after, "after"),
            None if before is None else aware(before, "before"),
            text,
        )

    def __bool__(self) -> bool:
        """Whether there is a criterion."""
        return self != LetterCriteria()

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether a letter is selected."""
        if self.reason not in (None, letter.reason):
            return False
        if self.after is not None and letter.at < self.after:
            return False
        if self.before is not None and letter.at >= self.before:
            return False
        if self.task is self.text is self.task_part is None:
            return True
        if self.task not in (None, letter.task):
            return False
        if self.task_part is not None and not (isinstance(letter.task, str) and self.task_part in letter.task):
            return False
        shown = (letter.error, letter.headers.get("argsrepr"), letter.headers.get("kwargsrepr"))
        return self.text in (None, letter.task_id) or any(isinstance(one, str) and self.text in one for one in shown)


def requeue(letters: DeadLetters, letter: DeadLetter) -> bool:
    """Move the message of a letter to the back of its queue, as if it were new; False if it is gone, or no message."""
    return letter.reason != NOT_AN_ENTRY and letters.requeue(letter, revived(letter.message))


def change_of(action: str, letters: DeadLetters, criteria: LetterCriteria) -> Callable[..., DeadChunk]:
    """Return the method that requeues or purges the selected letters, a chunk at a time.

    Args:
        action: `"requeue"` or `"purge"`.
        letters: all of them.
        criteria: selects some.
    """
    wanted: Any = {"wanted": criteria.matches} if criteria else {}
    if action == "purge":
        return partial(letters.purge_some, **wanted)
    return partial(letters.requeue_some, revive=revived, **wanted)


def count(
    action: str, letters: DeadLetters, criteria: LetterCriteria, on_progress: OnProgress = lambda done, total: None
) -> DeadChunk:
    """Return how many of the letters that match would be changed, and how many refused. It reads all letters."""
    changed = refused = 0
    total = len(letters)
    for number, letter in enumerate(letters, 1):
        on_progress(number, max(number, total))
        if criteria.matches(letter):
            is_refused = action == "requeue" and letter.reason == NOT_AN_ENTRY
            changed, refused = changed + (not is_refused), refused + is_refused
    return DeadChunk(changed, refused, None)


def change_some(inspector: Inspector, action: str, letters: DeadLetter | Iterable[DeadLetter]) -> int:
    """Requeue or purge some letters; returns how many of them, see `change_of`."""
    chosen = [letters] if isinstance(letters, DeadLetter) else list(letters)
    for letter in chosen:
        if not isinstance(letter, DeadLetter):
            raise TypeError(f"a dead letter must be one of a page of delayq.dead(), not {letter!r}")
    there = inspector.letters_of(*{letter.list_name for letter in chosen})
    act: Callable[[DeadLetters, DeadLetter], int] = requeue if action == "requeue" else DeadLetters.purge
    return sum(act(there, letter) for letter in chosen)


def change_all(
    inspector: Inspector, action: str, queue: str | None, criteria: LetterCriteria, *, dry_run: bool = False
) -> int:
    """Requeue or purge all letters that match, as many as there are now; returns how many. `dry_run`: only count."""
    letters = inspector.dead_letters(queue)
    if dry_run:
        return count(action, letters, criteria).changed
    change = change_of(action, letters, criteria)
    chunk = change()
    changed = chunk.changed
    while chunk.cursor is not None:
        chunk = change(cursor=chunk.cursor)
        changed += chunk.changed
    return changed

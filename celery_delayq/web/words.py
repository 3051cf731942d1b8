"""Words that pages show and that no template has. It needs nothing, so all modules may import it."""

from __future__ import annotations


def marked(text: str) -> str:
    """Return a word as it is: `make messages` finds it here, and a page translates it where it shows it."""
    return text


#: States of periodic tasks.
STATUSES = (
    *(marked("planned"), marked("late"), marked("paused"), marked("disabled"), marked("ended"), marked("never runs")),
    *(marked("error"), marked("unknown task"), marked("not seen by a planner")),
)

#: The days of the week, from Monday on.
WEEKDAYS = (marked("Mon"), marked("Tue"), marked("Wed"), marked("Thu"), marked("Fri"), marked("Sat"), marked("Sun"))

"""Where each task writes down that it starts: its number, when it was due, and when it is now, as unix times in s.

The apps in this folder do the same, with one library each. `note` is their task, and `send` calls it once for each
countdown in seconds; 0 is at once. The environment of a library has this folder only: import nothing from elsewhere.
"""

import os
import time

# Appending lines of this size is atomic.
_descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def started(number: int, due: float) -> None:
    """Write down that the task of this number, which is due at this time, starts now."""
    os.write(_descriptor, f"{number} {due!r} {time.time()!r}\n".encode())

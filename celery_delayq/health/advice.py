"""What to do about an error of a server, by its words."""

from __future__ import annotations

import re

#: Words of Redis and redis-py, which may leave out the code in capitals -> what to do. Versions differ a little.
_ADVICE = (
    (
        re.compile("MISCONF|(unable|not able) to persist"),
        "The disk of Redis is full or not writable, so Redis refuses all writes. Read its log, and fix the disk: Redis "
        "accepts writes again after the next successful snapshot.",
    ),
    (
        re.compile("WRONGPASS|NOAUTH|username-password pair|[Aa]uthentication required|called without any password"),
        "Check the user and the password in the broker URL: delayq://user:password@host:6379/0. Characters such as @, "
        "/ and # in a password are written as %40, %2F and %23.",
    ),
    (
        re.compile("No master found"),
        "Check the host names of the sentinels in the broker URL, and master_name in broker_transport_options: it is "
        "the word after `sentinel monitor` in their configuration.",
    ),
)


def advice_for(error: str, otherwise: str) -> str:
    """Return what to do about an error.

    Args:
        error: what it says.
        otherwise: what to do about any other error.
    """
    return next((advice for words, advice in _ADVICE if words.search(error)), otherwise)

"""Numbers with their nouns."""

from __future__ import annotations


def plural(number: int, noun: str = "task", nouns: str = "") -> str:
    """Return a number with its noun, of which `nouns` is the plural if that has more than an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or f'{noun}s'}"

"""How numbers are written in tables and plots."""

from __future__ import annotations


def shown(value: float) -> str:
    """Return a number with as many digits as mean something: `1,234`, `123.4`, `12.34`, `0.004`."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 0.1:
        return f"{value:.1g}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.1f}"

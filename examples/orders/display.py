"""What the story shows: a live view in a terminal, lines elsewhere, and the summary."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from examples.orders.ledger import Ledger, Order, histogram, quantile

_LIVE_EVERY_S, _LINE_EVERY_S = 0.1, 1.0
_BAR_WIDTH = 30
_IDS_SHOWN = 5


class Display:
    """Shows the progress of a story; the `with` block is the time during which it plays."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._live: Live | None = None
        self._closing = ExitStack()
        self._started = self._next_update = 0.0

    def __enter__(self) -> Display:
        self._started = time.monotonic()
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live = self._closing.enter_context(live)
        else:
            self._next_update = self._started + _LINE_EVERY_S
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing.close()

    def update(self, ledger: Ledger, count_waiting: Callable[[], int]) -> None:
        """Show where the story is, if it is time for that.

        Args:
            ledger: the orders.
            count_waiting: returns how many tasks wait in Redis.
        """
        if not self.is_time:
            return
        now = time.monotonic()
        elapsed_s = now - self._started
        if self._live is not None:
            self._next_update = now + _LIVE_EVERY_S
            self._live.update(self._picture(ledger, count_waiting(), elapsed_s), refresh=True)
            return
        self._next_update = now + _LINE_EVERY_S
        self.say(self._line(ledger, count_waiting(), elapsed_s))

    @property
    def is_time(self) -> bool:
        """Whether it is time to show something."""
        return time.monotonic() >= self._next_update

    def say(self, text: str = "") -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True)

    def _line(self, ledger: Ledger, waiting: int, elapsed_s: float) -> str:
        return (
            f"{elapsed_s:5.1f} s   placed {len(ledger.placed):4}   paid {len(ledger.paid):4}   "
            f"cancelled {len(ledger.cancelled):4}   waiting in Redis {waiting:4}"
        )

    def _picture(self, ledger: Ledger, waiting: int, elapsed_s: float) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", min_width=9)
        table.add_column(width=_BAR_WIDTH)
        table.add_column(justify="right", min_width=4)
        table.add_column(style="dim")
        for name, count, style, meaning in (
            ("placed", len(ledger.placed), "blue", f"of {len(ledger.orders)} orders"),
            ("paid", len(ledger.paid), "green", "in time, task cancelled"),
            ("cancelled", len(ledger.cancelled), "yellow", "not paid in time, task ran"),
            ("waiting", waiting, "magenta", "in Redis"),
        ):
            bar = self._bar(count, len(ledger.orders))
            table.add_row(name, f"[{style}]{bar}[/]", str(count), meaning)
        table.add_row("", f"[dim]{elapsed_s:.1f} s[/]")
        return table

    def summary(self, ledger: Ledger) -> None:
        """Print how the story ended, and whether that is right."""
        held = ledger.held_by_workers
        self.say()
        self._count(len(ledger.placed), "orders placed", "each with a task that cancels it")
        self._count(len(ledger.paid), "paid in time", "their tasks were cancelled while they waited")
        self._count(len(ledger.cancelled), "not paid in time", "their tasks ran")
        if ledger.too_late:
            self.say(f"[dim]{'':27}({len(ledger.too_late)} of them paid a moment too late)[/]")
        self.say()
        self._fault(ledger.open, "lost", "neither paid nor cancelled")
        self._fault(ledger.cancelled_twice, "ran twice", "cancelled more than once")
        self._fault(ledger.paid_and_cancelled, "ran though paid", "task ran after it was cancelled")
        self._fault(ledger.early, "ran early", "cancelled before the time was over")
        self._count(
            "?" if held is None else held,
            "held by workers",
            f"while {ledger.waited_then} tasks waited in Redis",
            wrong=held != 0,
        )
        self._lateness(ledger.lateness_ms)
        self._more(ledger)
        self.say()
        if ledger.all_right():
            self.say("[bold green]All is right:[/] each order was paid or cancelled, exactly once, and none too early.")
        else:
            self.say("[bold red]Something is wrong:[/] see above.")

    def _more(self, ledger: Ledger) -> None:
        """Print what a subclass knows besides."""

    def _count(self, count: int | str, name: str, meaning: str, *, wrong: bool = False) -> None:
        style = "[bold red]" if wrong else ""
        self.say(f"{style}{count:>6}  {name:19}[dim]{meaning}[/]")

    def _fault(self, orders: list[Order], name: str, meaning: str) -> None:
        self._count(len(orders), name, meaning, wrong=bool(orders))
        if orders:
            ids = ", ".join(order.id for order in orders[:_IDS_SHOWN])
            self.say(f"{'':27}{ids}{', ...' if len(orders) > _IDS_SHOWN else ''}")

    def _lateness(self, lateness_ms: list[float]) -> None:
        if not lateness_ms:
            return
        p50, p99 = quantile(lateness_ms, 0.5), quantile(lateness_ms, 0.99)
        self.say()
        self.say("Lateness in ms, from the end of an order's time to the start of its task:")
        self.say(f"   p50 {p50:.1f}    p99 {p99:.1f}    max {lateness_ms[-1]:.1f}")
        classes = histogram(lateness_ms)
        most = max(count for _, count in classes)
        for label, count in classes:
            bar = f"  [yellow]{self._bar(count, most)}[/]" if count else ""
            self.say(f"   {label:>11}  {count:4}{bar}")

    def _bar(self, count: int, whole: int) -> str:
        length = round(_BAR_WIDTH * min(count, whole) / max(whole, 1))
        block = "█" if self.console.encoding.startswith("utf") else "#"
        return block * max(length, 1 if count else 0)

"""What the story on a cluster shows besides: the queues by node."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table

from examples.orders.cluster_nodes import Nodes, NodeView
from examples.orders.display import Display
from examples.orders.ledger import Ledger, quantile


class ClusterDisplay(Display):
    """Shows the nodes, too.

    Args:
        nodes: the nodes; it looks at them before it shows anything.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        self._nodes = nodes
        #: The node that was killed, when (monotonic), and how long its replica took to take over, in seconds.
        self._victim: NodeView | None = None
        self._killed_at = 0.0
        self._took_over_s: float | None = None

    def killed(self, view: NodeView) -> None:
        """Tell that a node is killed."""
        self._victim, self._killed_at = view, time.monotonic()
        self.say(f"[bold red]Node {view.address} is killed[/], with the queues of {_cities(view)}.")

    def update(self, ledger: Ledger, count_waiting: Callable[[], int]) -> None:
        """Show where the story is, see `Display`."""
        if self.is_time:
            self._nodes.look()
            victim = self._victim
            if victim and self._took_over_s is None and victim.address != victim.first and not victim.is_lost:
                self._took_over_s = time.monotonic() - self._killed_at
                self.say(
                    f"[bold green]Its replica {victim.address} took over[/] after {self._took_over_s:.1f} s, with "
                    f"{victim.delayed} delayed tasks."
                )
        super().update(ledger, count_waiting)

    def _line(self, ledger: Ledger, waiting: int, elapsed_s: float) -> str:
        counts = "   ".join(
            f"{view.address} {'lost' if view.is_lost else f'{view.delayed}/{view.ready}/{view.in_flight}':>8}"
            for view in self._nodes.views
        )
        return f"{super()._line(ledger, waiting, elapsed_s)}   by node (delayed/ready/in-flight): {counts}"

    def _picture(self, ledger: Ledger, waiting: int, elapsed_s: float) -> RenderableType:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name, justify in (("node", "left"), ("queues of", "left"), ("", "left")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for name in ("delayed", "ready", "in flight", "cancelled"):
            table.add_column(name, justify="right")
        for view in self._nodes.views:
            state = "[bold red]lost[/]" if view.is_lost else "[green]ok[/]"
            if not view.is_lost and view.address != view.first:
                state = f"[yellow]took over from {view.first}[/]"
            counts = ("?",) * 3 if view.is_lost else (str(view.delayed), str(view.ready), str(view.in_flight))
            table.add_row(view.address, _cities(view), state, *counts, str(len(_lateness_ms(view, ledger))))
        return Group(super()._picture(ledger, waiting, elapsed_s), table)

    def _more(self, ledger: Ledger) -> None:
        self.say()
        self.say("By node, in ms:")
        for view in self._nodes.views:
            late = _lateness_ms(view, ledger)
            figures = f"p50 {quantile(late, 0.5):.1f}    max {late[-1]:.1f}" if late else ""
            end = ""
            if view is self._victim:
                took = "nobody took over" if self._took_over_s is None else f"{view.address} took over"
                after = "" if self._took_over_s is None else f" after {self._took_over_s:.1f} s"
                end = f"    [yellow]killed; {took}{after}[/]"
            self.say(f"   {view.first}  {_cities(view):16}  {len(late):4} cancelled    {figures}{end}")


def _cities(view: NodeView) -> str:
    return ", ".join(queue.rpartition("-")[2] for queue in view.queues)


def _lateness_ms(view: NodeView, ledger: Ledger) -> list[float]:
    """Return how late the orders of a node were cancelled, sorted."""
    cities = {queue.rpartition("-")[2] for queue in view.queues}
    orders = [order for order in ledger.cancelled if order.id.partition("-")[0] in cities]
    return sorted((order.cancelled_at[0] - order.due) * 1000 for order in orders)

"""Pictures of what waits: two commands, run on a Redis of their own, as SVG for the README.

python -m examples.orders.picture

Places some orders, runs the real commands, and draws what they wrote. No worker runs: none is needed to see what waits.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from examples.private_redis import PrivateRedis

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
ORDERS = 180
COLUMNS = 120

#: The name of each picture, and the command whose output it shows.
COMMANDS = {
    "status": "celery -A examples.orders.shop delayq status --span 30m --buckets 6",
    "list": "celery -A examples.orders.shop delayq list --due-before 50s",
}


def place_orders() -> None:
    """Place orders as if they had come in over the last half hour: each has a part of its time left."""
    from examples.orders.shop import place_order  # reads SHOP_REDIS

    times = random.Random(1)
    for number in range(1001, 1001 + ORDERS):
        place_order(f"order-{number}", pay_within_s=times.uniform(20, 30 * 60))


def output_of(command: str) -> str:
    """Run a command of Celery as if in a terminal, and return what it wrote, with its colors."""
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    python_command = [sys.executable, "-m", *shlex.split(command)]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    finished = subprocess.run(
        python_command, cwd=ROOT, env={**environment, **terminal}, stdout=subprocess.PIPE, text=True, check=True
    )
    return finished.stdout


def draw(command: str, output: str) -> str:
    """Return the command and its output as SVG."""
    console = Console(record=True, file=StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor")
    console.print(f"$ {command}", style="bold", highlight=False)
    for line in Text.from_ansi(output).split("\n", allow_blank=True):
        line.rstrip()
        console.print(line)
    # A viewer would fetch Rich's font from the network.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=""), flags=re.DOTALL)
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


def main() -> None:
    """Write all pictures to docs/pictures."""
    PICTURES.mkdir(exist_ok=True)
    with PrivateRedis() as server:
        os.environ["SHOP_REDIS"] = f"127.0.0.1:{server.port}/0"
        place_orders()
        for name, command in COMMANDS.items():
            picture = PICTURES / f"{name}.svg"
            picture.write_text(draw(command, output_of(command)), encoding="utf-8")
            print(f"wrote {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

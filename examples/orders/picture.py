"""Pictures of what waits: two commands, run on a Redis of their own, as SVG for the README.

python -m examples.orders.picture

Makes up a busy shop, starts a worker, runs the real commands, and draws what they wrote.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from examples.orders.demo import busy_shop
from examples.private_redis import PrivateRedis

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 120

#: The name of each picture, and the command whose output it shows, as one types it in a folder with a `shop.py`.
COMMANDS = {
    "status": "celery -A shop delayq status --span 1h --buckets 10",
    "list": "celery -A shop delayq list --queue mail --due-before 4m",
}

#: The app that it is run with.
APP = "examples.orders.scene"


def output_of(command: str) -> str:
    """Run a command of Celery as if in a terminal, and return what it wrote, with its colors."""
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    python_command = [sys.executable, "-m", *shlex.split(command.replace("-A shop", f"-A {APP}"))]
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
        with busy_shop(dict(os.environ), subprocess.DEVNULL):
            for name, command in COMMANDS.items():
                picture = PICTURES / f"{name}.svg"
                picture.write_text(draw(command, output_of(command)), encoding="utf-8")
                print(f"wrote {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

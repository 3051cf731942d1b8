"""The stories of `examples/unique`, played as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_server("the example has a Redis of its own")

REPOSITORY = Path(__file__).parents[2]


def test_the_stories_end_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.unique.stories"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one reminder" in done.stdout
    assert "one rebuild" in done.stdout
    assert "five turns" in done.stdout
    assert "WRONG" not in done.stdout
    assert not done.stderr

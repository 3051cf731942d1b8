"""What the `access` of a site says; a test may change it while the site runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

#: Who may do what: nothing at all, look, everything, or these actions.
Access: TypeAlias = Literal["read", "all"] | list[str] | None


class AccessFile:
    """Says what a file says, in whatever process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, request: Any) -> Access:
        access: Access = json.loads(self.path.read_text("utf-8"))
        return access

    def set(self, access: Access) -> None:
        """Let sites say this from the next request on."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(access), "utf-8")
        new.replace(self.path)

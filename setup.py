"""What setup.cfg cannot say: links to the repository, whose address is a line of setup.cfg.

PyPI shows README.md without the files beside it, so there its links have to be absolute.
"""

import re
import runpy
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent

#: Code, which stays as it is; or a link or picture with a relative path.
CODE_OR_LINK = re.compile(r"```.*?```|`[^`]*`|(?P<text>!?\[[^\]]*\])\((?!#|[a-z]+:)(?P<path>[^()\s]+)\)", re.DOTALL)


def absolute(markdown: str, address: str, tag: str) -> str:
    """Return Markdown whose relative links and pictures are those of the repository at a tag."""

    def replacement(found: re.Match[str]) -> str:
        if found["path"] is None:
            return found[0]
        kind = "raw" if found["text"].startswith("!") else "blob"
        return f"{found['text']}({address}/{kind}/{tag}/{found['path']})"

    return CODE_OR_LINK.sub(replacement, markdown)


def main() -> None:
    """Build what setuptools was asked for."""
    setup_cfg = ConfigParser(interpolation=None)
    setup_cfg.read(HERE / "setup.cfg", "utf-8")
    address = setup_cfg["repository"]["address"]
    readme = (HERE / "README.md").read_text("utf-8")
    if not address:
        setup(long_description=readme)
        return
    tag = "v" + runpy.run_path(str(HERE / "celery_delayq" / "basics" / "version.py"))["__version__"]
    setup(
        long_description=absolute(readme, address, tag),
        project_urls={
            "Source": address,
            "Documentation": f"{address}/blob/{tag}/docs/README.md",
            "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{address}/issues",
        },
    )


if __name__ == "__main__":
    main()

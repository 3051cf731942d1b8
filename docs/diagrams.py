"""Draws the diagrams of the docs, with Mermaid in the machine's Chromium: `make diagrams`.

The drawings are in the repository, so that neither the docs nor GitHub need Mermaid to show them.
"""

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parent / "pictures"

_DRAW = """
async ([name, source]) => {
    const flowchart = {wrappingWidth: 360};
    const sequence = {mirrorActors: false, useMaxWidth: false};
    mermaid.initialize({theme: "neutral", htmlLabels: false, flowchart, sequence, fontFamily: "sans-serif"});
    const {svg} = await mermaid.render(name, source);
    const drawn = new DOMParser().parseFromString(svg, "text/html").querySelector("svg");
    drawn.setAttribute("width", drawn.viewBox.baseVal.width);
    drawn.setAttribute("height", drawn.viewBox.baseVal.height);
    drawn.style.backgroundColor = "#fff";
    // Mermaid gives each word an element, and viewers other than browsers drop the spaces between them.
    for (const line of drawn.querySelectorAll(".text-outer-tspan")) line.textContent = line.textContent;
    return new XMLSerializer().serializeToString(drawn);
}
"""


def draw(mermaid: Path) -> None:
    """Write `NAME.svg` beside each `NAME.mmd`.

    Args:
        mermaid: the script of Mermaid.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=mermaid)
        for source in sorted(PICTURES.glob("*.mmd")):
            svg = page.evaluate(_DRAW, [source.stem, source.read_text(encoding="utf-8")])
            svg = re.sub(r' data-points="[^"]*"', "", svg)
            svg = re.sub(r"\d+\.\d{2,}", lambda number: format(float(number[0]), ".1f"), svg)
            source.with_suffix(".svg").write_text(svg + "\n", encoding="utf-8")
        browser.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))

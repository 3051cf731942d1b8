"""Sphinx builds the docs from the Markdown pages as they are: `make docs`.

The root of the sources is the repository, so each link between pages that works on GitHub works here, too.
"""

from celery_delayq import __version__

project = "celery_delayq"
version = release = __version__
project_copyright = "the authors of celery_delayq, BSD-3-Clause"

extensions = [
    "myst_parser",
    "sphinx_external_toc",  # the navigation: nav.yml
    "sphinx_copybutton",
]
include_patterns = [
    *("docs/**", "examples/*/README.md", "README.md", "README.zh-CN.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
]
external_toc_path = "docs/nav.yml"
suppress_warnings = ["etoc.glob"]  # pages that nav.yml names by a pattern may be missing

myst_enable_extensions = ["tasklist"]
myst_heading_anchors = 4  # named as GitHub names them
myst_links_external_new_tab = False

smartquotes = False  # would turn --all into a dash

html_theme = "furo"
html_title = f"celery_delayq {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # index.html, which leads to docs/
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
copybutton_exclude = ".linenos, .gp, .go"

linkcheck_ignore = [r"http://localhost"]
linkcheck_anchors = False
linkcheck_timeout = 10

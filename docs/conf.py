"""Configuration of the documentation site; ``ci/docs`` builds it."""

from __future__ import annotations

import os
import warnings
from dataclasses import is_dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jupyter_client
from traitlets import default

project = "dasktile"
author = "the dasktile developers"
project_copyright = "the dasktile developers"
release = version_of("dasktile")
version = release.partition("+")[0]

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
if os.environ.get("DASKTILE_DOCS_ONLINE"):
    # links to other projects need the network: `DASKTILE_DOCS_ONLINE=1 ci/docs`
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "dask": ("https://docs.dask.org/en/stable/", None),
        "distributed": ("https://distributed.dask.org/en/stable/", None),
        "python": ("https://docs.python.org/3/", None),
    }

exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
root_doc = "index"

# Pages ----------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# every page with cells is executed for every build, so that all output is real
nb_execution_mode = "force"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True
# warnings of Dask have the paths of this machine
nb_output_stderr = "remove"
# cells that start processes need the folder of this file on their path for `_drawing`
nb_execution_in_temp = False
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
os.environ.setdefault("OMP_NUM_THREADS", "1")


class _LocalKernels(jupyter_client.AsyncKernelManager):
    """Kernels that are reached through files.

    The ports of a kernel are chosen before it starts, and may belong to a cluster of another page
    when it does.
    """

    @default("transport")
    def _files(self) -> str:
        return "ipc"

    @default("ip")
    def _folder(self) -> str:
        # kernels run in the folders of their pages
        self.folder = TemporaryDirectory(prefix="dasktile-docs-")
        return str(Path(self.folder.name) / "kernel")


# where nbclient looks for it
jupyter_client.AsyncKernelManager = _LocalKernels
# one HTML repr for each result, not its text beside it
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/svg+xml", 5)]

# The reference --------------------------------------------------------------------------

autodoc_typehints = "none"
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False
nitpicky = True
nitpick_ignore_regex = [
    # types of other packages, and those in docstrings' prose
    ("py:.*", r"(dask|distributed|numpy|xarray|collections|pathlib|typing)(\..*)?"),
    ("py:.*", r"(optional|Any|Client|Path|Chunks|TilingPlan|Scheduler|Worker).*"),
]

# External links, which `ci/linkcheck` checks -------------------------------------------------

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|scheduler)\b.*"]
# GitHub and PyPI add the headings of a page by a script
linkcheck_anchors_ignore_for_url = [r"https://(github\.com|pypi\.org)/.*"]

# The theme ------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "dasktile"
html_static_path = ["_static"]
html_css_files = ["dasktile.css"]
# dark where the browser prefers that
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    # where there is a list of pages on the left, the tables need the room on the right
    "secondary_sidebar_items": {
        **{pages: ["page-toc"] for pages in ("*", "upstream/*")},
        **{pages: [] for pages in ("concepts/*", "gallery/*", "how-to/*")},
    },
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
html_sidebars = {page: [] for page in ("index", "getting-started", "api", "measured")}
html_show_sourcelink = False

# warnings of libraries about themselves, which no page should show
warnings.filterwarnings("ignore", category=DeprecationWarning)


def _without_fields(app: Any, what: str, name: str, obj: Any, *_: Any) -> tuple[str, None] | None:
    """Results are not made by users: their fields are listed once, below."""
    return ("", None) if what == "class" and is_dataclass(obj) else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", _without_fields)

# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for the site; `build.py` beside this file puts the pages in place."""

from sphinx.application import Sphinx

import gossamer

project = "gossamer"
author = "the gossamer authors"
copyright = "Apache-2.0"
release = version = gossamer.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "README"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
default_role = "code"  # `name` in a docstring is code, as on the pages
nitpicky = False

# Types are named in short; what is inherited from torch is described by torch.
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"gossamer {release}"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "friendly"
pygments_dark_style = "monokai"
# Pages that scripts write may begin their tables at any level.
suppress_warnings = ["myst.header"]


def _plain_bars(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """In a docstring |w| is an absolute value; to docutils it would be a substitution."""
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        lines[number] = "`".join(parts)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _plain_bars)

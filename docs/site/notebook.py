# SPDX-License-Identifier: Apache-2.0
"""The tutorial as a notebook: text becomes Markdown cells, Python blocks become code cells.

Run it after a change of the page; a test says so if you forget.
"""

import json
import re
from pathlib import Path

START = Path(__file__).parents[1] / "start"
PAGE, NOTEBOOK = START / "tutorial.md", START / "tutorial.ipynb"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.S | re.M)
_SELF = "The same as a notebook:\n[tutorial.ipynb](tutorial.ipynb)."


def notebook_of(page: str) -> str:
    """The JSON of a notebook, version 4.5, without outputs."""
    cells = []
    for number, part in enumerate(_BLOCK.split(page)):
        text = part.replace(_SELF, "").strip("\n")
        if not text:
            continue
        cell: dict[str, object] = {"id": f"cell-{number}", "metadata": {}}
        cell["source"] = text.splitlines(keepends=True)
        if number % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        else:
            cell["cell_type"] = "markdown"
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook_of(PAGE.read_text()))

# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/models.md from the matrix: `python tests/models/write_models_page.py`."""

import tempfile
from itertools import groupby
from pathlib import Path

from cells import COLUMNS, TOLERANCE, cells_of
from model_rows import ARCHITECTURES, Architecture

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
_REFUSED = "no: "
_TITLE = """\
# Models

Any directory whose `config.json` names a class of the installed transformers goes in: `gossamer
prune`, `shrink`, `train`, `run`, `explain` and `gossamer.load` take it. Its class is looked up in
the tables that transformers' own `AutoModel` uses; no code of the directory is run, and no pickle
is read. Layers of a known kind (Linear, Conv2d, Experts) are pruned, and what is saved is loaded
without `model=`.

This page is written by `tests/models/write_models_page.py`, and a test holds it current: {count}
architectures, each a tiny model with random weights and odd sizes, are taken through every column.

| column | what was done |
|---|---|
| prune | loaded from shards, output as before; half of the weights of every layer became zero |
| compact training | gradients of kept values equal the masked model's within {tolerance:g} |
| save and load | `gossamer.save`, then `gossamer.load` without `model=`: equal to the last bit |
| compile | on a sparse kernel: outputs equal those of the masked model within {tolerance:g} |
| engine | the native call that runs its layers as a whole; else each has its own kernel |

The share below *prune* says how many of all parameters lie in the layers that were pruned.
Convolutions are tried as one native call by `gossamer.compile(example=images)`, whatever the class.
Experts that transformers stores as 3-D Parameters are read as layers; their routers stay as they
are. What is not in these layers stays dense and is named in the report: tables of tokens,
`lm_head`, routers and 1-D convolutions.
"""


def line_of(row: Architecture, cells: dict[str, str]) -> str:
    """The line of a table."""
    shown = ["no" if cells[name].startswith(_REFUSED) else cells[name] for name in COLUMNS]
    return f"| {row.title} | `{row.model}` | {' | '.join(shown)} |"


def refusals_of(row: Architecture, cells: dict[str, str]) -> list[str]:
    """What stands below the tables about a row; every line has its sentence."""
    refused = {name: cells[name] for name in COLUMNS if cells[name].startswith(_REFUSED)}
    return [
        f"- {row.title}, {name}: {text.removeprefix(_REFUSED)}"
        for name, text in refused.items()
        if name != "engine"
    ]


def reason_of(row: Architecture, cells: dict[str, str]) -> str | None:
    """Why no engine runs it."""
    text = cells["engine"]
    return text.removeprefix(_REFUSED) if text.startswith(_REFUSED) else None


def head_of(count: int) -> str:
    """What stands above the tables of so many architectures."""
    return _TITLE.format(count=count, tolerance=TOLERANCE)


def page_of(found: dict[Architecture, dict[str, str]]) -> str:
    """The whole page."""
    parts = [head_of(len(found))]
    for kind, rows in groupby(found, key=lambda row: row.kind):
        lines = [line_of(row, found[row]) for row in rows]
        head = f"| model | class | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}"
        parts.append(f"## {kind}\n\n{head}\n" + "\n".join(lines) + "\n")
    refusals = [line for row, cells in found.items() for line in refusals_of(row, cells)]
    if refusals:
        parts.append("## Refusals\n\nAn error of gossamer says so; nothing is lost.\n")
        parts.append("\n".join(refusals) + "\n")
    reasons: dict[str, list[str]] = {}
    for row, cells in found.items():
        why = reason_of(row, cells)
        if why is not None:
            reasons.setdefault(why, []).append(row.title)
    parts.append("## Why no engine\n")
    parts.append("\n".join(f"- {why}: {', '.join(who)}" for why, who in reasons.items()) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Run the matrix and write the page."""
    found = {}
    for row in ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            found[row] = cells_of(row, Path(folder))
        print(line_of(row, found[row]), flush=True)
    PAGE.write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()

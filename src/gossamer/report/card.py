# SPDX-License-Identifier: Apache-2.0
"""`card.md`: what was done to which model, what it gained and cost, and where the limits are.

Names of models and layers are untrusted: every string is escaped before it enters the Markdown.
"""

import re
from collections.abc import Mapping, Sequence

from gossamer.report.comparison import Comparison
from gossamer.report.report import Report

__all__ = ["render_card"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def render_card(
    *,
    title: str,
    base: str,
    method: Mapping[str, str],
    report: Report,
    comparison: Comparison,
    machine: Mapping[str, str],
    limits: Sequence[str],
) -> str:
    """The card as Markdown.

    Args:
        title: the artifact's name.
        base: the model that was pruned.
        method: settings of the pruning, by name.
        report: what pruning did.
        comparison: measured figures beside dense; doubtful ones are left out.
        machine: from `describe_machine`.
        limits: what the numbers do not say.
    """
    cells = comparison.trusted().cells()
    head, *rows = (f"| {' | '.join(map(escape, row))} |" for row in cells)
    lines = [
        f"# {escape(title)}",
        "",
        f"Pruned from {escape(base)}: {_what_is_left(report)}",
        "",
        "## Measured",
        "",
        head,
        "|" + "---|" * len(cells[0]),
        *rows,
        "",
        f"Machine: {escape('; '.join(f'{k} {v}' for k, v in machine.items()))}.",
        "",
        "## Method",
        "",
        *(f"- {escape(name)}: {escape(value)}" for name, value in method.items()),
        "",
        "## Limits",
        "",
        *(f"- {escape(limit)}" for limit in limits),
        "- Data and licence are those of the base model; they are not stated here.",
        "",
        "Load with `gossamer.load(path)`, then `gossamer.compile(model)` to run it.",
        "",
    ]
    return "\n".join(lines)


def _what_is_left(report: Report) -> str:
    if not report.layers:
        left = report.bytes_sparse / report.bytes_dense if report.bytes_dense else 1.0
        return f"a smaller dense model, {left:.2%} of its bytes are left."
    return (
        f"{report.sparsity:.2%} zeros in {len(report.layers)} layers,"
        f" {report.global_sparsity:.2%} of all parameters."
    )


def escape(text: str) -> str:
    """`text` as Markdown that shows exactly it: no markup, no HTML, one line."""
    flat = "".join(char if char.isprintable() else " " for char in text)
    return _SPECIAL.sub(r"\\\1", flat).translate(_HTML)

# SPDX-License-Identifier: Apache-2.0
"""What pruning gained and cost, for people and for programs.

- `Report` is what `sparsify` returns: sparsity beside bytes, time and quality.
- `Comparison` holds measured `Figure`s of several models side by side.
- `Page` is what an HTML report says, and `write_html` writes it. `Card` is the card of an artifact.
- Charts have a room of their own, `gossamer.report.charts`.
"""

from gossamer.report.card import Card, render_card
from gossamer.report.comparison import Comparison, Figure
from gossamer.report.html import write_html
from gossamer.report.machine import describe_machine
from gossamer.report.page import Page, TextTable
from gossamer.report.report import LayerRow, Report, format_bytes

__all__ = [
    "Card",
    "Comparison",
    "Figure",
    "LayerRow",
    "Page",
    "Report",
    "TextTable",
    "describe_machine",
    "format_bytes",
    "render_card",
    "write_html",
]

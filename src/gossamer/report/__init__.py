# SPDX-License-Identifier: Apache-2.0
"""What people get to read: the `Report` of a run, the HTML page, the model card.

A `Report` has a `LayerRow` per layer. A `Page` shows a `Comparison` with the dense model, made of
`Figure`s, with tables and charts, and `write_html` makes one file of it. `format_bytes` and
`describe_machine` are words that all of them use. `page` has the parts of a page, `charts` draws,
`card` writes the model card.
"""

from gossamer.report.comparison import Comparison, Figure
from gossamer.report.page import Page, describe_machine, write_html
from gossamer.report.report import LayerRow, Report, format_bytes

__all__ = [
    "Comparison",
    "Figure",
    "LayerRow",
    "Page",
    "Report",
    "describe_machine",
    "format_bytes",
    "write_html",
]

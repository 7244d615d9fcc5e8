# SPDX-License-Identifier: Apache-2.0
"""The model card of what a search took: what it is, what it was compared with, how to run it."""

from typing import TYPE_CHECKING

from gossamer.report.machine import describe_machine

if TYPE_CHECKING:
    from gossamer.search.shrinking import ShrinkResult


def card_text(result: "ShrinkResult") -> str:
    """Markdown; figures are those of the search."""
    chosen, dense = result.chosen, result.points[0]
    rows = [
        (f"{result.quality_name}, data nothing was chosen by", f"{result.dense_quality:.2f}",
         f"{result.quality:.2f}"),
        (f"{result.quality_name}, data it was chosen by", f"{dense.quality:.2f}",
         f"{chosen.quality:.2f}"),
        (f"ms, {result.timed}, measured in turn", f"{chosen.ms * chosen.speedup:.2f}",
         f"{chosen.ms:.2f}"),
        ("bytes of tensor files", str(dense.size), str(chosen.size)),
    ]  # fmt: skip
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    why = f"the fastest of {len(result.points)} measured models within the limits."
    if not result.met:
        why = "no model met all limits, and this one is nearest."
    lines = [
        f"# {result.path.name}",
        "",
        f"Made by `gossamer shrink`: {chosen.name}, {why}",
        "",
        "| | dense fp32 | this model |",
        "|---|---|---|",
        *(f"| {name} | {first} | {second} |" for name, first, second in rows),
        "",
        f"Load with `gossamer.load(path)` and run with `gossamer.compile(model,"
        f' precision="{chosen.precision}")`.',
        "",
        f"Measured on: {machine}.",
        "",
        "Data and licence: not stated yet.",
        "",
    ]
    return "\n".join(lines)

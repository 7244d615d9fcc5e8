# SPDX-License-Identifier: Apache-2.0
"""The model card of what a search took: what it is, what it was compared with, how to run it."""

from typing import TYPE_CHECKING

from gossamer.report.machine import describe_machine
from gossamer.search.front import trained_beside
from gossamer.search.trial import Point
from gossamer.search.verdict import untried_text

if TYPE_CHECKING:
    from gossamer.search.shrinking import ShrinkResult


def card_text(result: "ShrinkResult", *, is_described: bool, has_images: bool) -> str:
    """Markdown; figures are those of the search.

    Args:
        result: of the search.
        is_described: whether the artifact says how its model is built.
        has_images: whether it reads images, which are then compiled by example.
    """
    chosen, dense = result.chosen, result.points[0]
    rows = [
        (f"{result.quality_name}, data nothing was chosen by", f"{result.dense_quality:.2f}",
         f"{result.quality:.2f}"),
        (f"{result.quality_name}, data it was chosen by", f"{dense.quality:.2f}",
         f"{chosen.quality:.2f}"),
        (f"ms, {result.timed}, measured in turn", *_times(chosen)),
        ("bytes of tensor files", str(dense.size), str(chosen.size)),
    ]  # fmt: skip
    machine = ", ".join(f"{key} {value}" for key, value in describe_machine().items())
    why = f"the fastest of {len(result.points)} measured models within the limits."
    if not result.met:
        why = "no model met all limits, and this one is nearest."
    if not result.num_pruned:
        why += " No pruned model was measured."
    why += untried_text(result)
    load = "gossamer.load(path)" if is_described else "gossamer.load(path, your_model)"
    example = ", example=images" if has_images else ""
    beside = trained_beside(result.points, chosen)
    lines = [
        f"# {result.path.name}",
        "",
        f"Made by `gossamer shrink`: {chosen.name}, {why}",
        "",
        "| | dense fp32 | this model |",
        "|---|---|---|",
        *(f"| {name} | {first} | {second} |" for name, first, second in rows),
        "",
        *([beside, ""] if beside else []),
        f"Load with `{load}` and run with `gossamer.compile(model,"
        f' precision="{chosen.precision}"{example})`.',
        "",
        f"Measured on: {machine}.",
        "",
        "Data and licence: not stated yet.",
        "",
    ]
    return "\n".join(lines)


def _times(chosen: Point) -> tuple[str, str]:
    """Of dense and this model; times of a busy machine are not written down for good."""
    if chosen.doubt:
        return (f"not measured ({chosen.doubt})",) * 2
    return f"{chosen.ms * chosen.speedup:.2f}", f"{chosen.ms:.2f}"

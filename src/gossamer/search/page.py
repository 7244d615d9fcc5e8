# SPDX-License-Identifier: Apache-2.0
"""A search for people: the verdict, the report with its picture and tables, and the model card.

The verdict says what was found, out of what was tried, and what was not; it never says more than
was measured. The card says what the model is, what it was compared with, and how to run it.
"""

import math
from collections.abc import Sequence

from gossamer.report import Comparison, Figure, Page, describe_machine, format_bytes
from gossamer.report.page import TextTable
from gossamer.search.candidates import is_trained_dense
from gossamer.search.front import SearchLimits, ShrinkResult, best, trained_beside
from gossamer.search.picture import front_chart
from gossamer.search.trial import Point

__all__ = [
    "HEAD",
    "card_text",
    "notes_of",
    "rows_of",
    "search_page",
    "verdict",
]

HEAD = ("model", "quality", "lost", "ms", "over torch", "bytes", "")
_OUT_OF_TIME = (
    "The budget ended before the ideas did: the same command with a larger one goes on from here."
)


def search_page(result: ShrinkResult, limits: SearchLimits, title: str) -> Page:
    """Everything a reader needs to agree or disagree with the choice."""
    chosen = result.chosen
    quality, times = (result.dense_quality, result.quality), (chosen.ms * chosen.speedup, chosen.ms)
    return Page(
        title=title,
        lead=verdict(result, limits),
        comparison=Comparison(
            ("dense in torch", chosen.name),
            (
                Figure(f"{result.quality_name}, data nothing was chosen by", "score", quality),
                Figure("bytes of tensor files", "bytes", (result.points[0].size, chosen.size)),
                Figure(f"ms, {result.timed}", "ms", times, chosen.doubt),
            ),
        ),
        charts=[front_chart(result, limits)],
        tables=[
            TextTable(
                "Everything that was tried, in order",
                HEAD,
                tuple(map(tuple, rows_of(result.points, chosen, result.front))),
                f"Quality is {result.quality_name} on the data choices were made by. Every model"
                " of ours was timed in turn with the dense one in torch: its time is that of dense"
                " over this ratio, so that all are on one scale. Other engines have their own.",
            ),
            TextTable(
                "Forecasts",
                ("mask", "ms", "change of outputs"),
                tuple((f.mask, f"{f.ms:.2f}", f"{f.error:.1%}") for f in result.forecasts),
                "Time of a mask by magnitude, and the mean change of the layers' outputs on"
                " calibration data: what decided the order of the search. "
                + " ".join(result.skipped),
            ),
            *long_tables(result),
        ],
        notes=notes_of(result),
    )


def long_tables(result: ShrinkResult) -> list[TextTable]:
    """How long texts can be read, if that was asked."""
    long = result.long_texts
    if long is None:
        return []
    rows = (
        (
            f"{point.name}{', taken' if point == long.chosen else ''}",
            f"{point.quality:.2f}",
            f"{point.lost:+.2%}",
            "-" if point.found is None else str(point.found),
            f"{point.prompt_ms:.0f}",
            f"{point.token_ms:.2f}",
            format_bytes(point.size),
        )
        for point in long.points
    )
    head = ("gossamer run", "perplexity", "lost", "found", "prompt, ms", "token, ms", "keys, bytes")
    note = "Numbers hidden at ten depths are asked for where perplexity is within the limit."
    return [TextTable(f"Texts of {long.length} tokens", head, tuple(rows), note)]


def rows_of(points: Sequence[Point], chosen: Point, on_front: Sequence[Point]) -> list[list[str]]:
    """One line per model, in the order of the search."""
    rows = []
    for point in points:
        mark = "taken" if point == chosen else "front" if point in on_front else ""
        row = [
            point.name,
            f"{point.quality:.2f}" if math.isfinite(point.quality) else "-",
            f"{point.lost:+.2%}",
            f"{point.ms:.2f}",
            f"{point.speedup:.2f}x",
            format_bytes(point.size),
            f"{mark} (busy machine)".strip() if point.doubt else mark,
        ]
        rows.append(row)
    return rows


def notes_of(result: ShrinkResult) -> list[str]:
    """What was not tried and why, the time it took, and how far to trust its times."""
    notes = [
        f"The search took {result.seconds / 60:.1f} of {result.budget_seconds / 60:g} minutes,"
        f" {result.cpu_seconds / 60:.1f} minutes of processors."
    ]
    if result.doubt:
        notes.append(f"{result.doubt}. A quiet one tries more in the same time.")
    if result.long_texts is not None:
        notes.append(result.long_texts.text)
    if result.left_out:
        notes.append(f"Not tried, or not finished: {' '.join(result.left_out)} {_OUT_OF_TIME}")
    return notes


def verdict(result: ShrinkResult, limits: SearchLimits) -> str:
    """The headline; it never says more than was measured."""
    chosen = result.chosen
    untried = untried_text(result)
    if not result.met:
        return f"Nothing tried met all limits. Nearest: {_described(chosen)}.{untried}"
    if chosen.is_dense:
        return f"{_dense_verdict(result, limits)}{untried}"
    rival = best([p for p in result.points if not p.is_ours], limits)
    if rival is not None and rival.ms < chosen.ms:
        ours = f"of ours, {_described(chosen)}"
        return f"{rival.name} is faster ({rival.ms:.2f} ms); {ours}.{untried}"
    beside = trained_beside(result.points, chosen)
    return f"{_described(chosen)}.{' ' if beside else ''}{beside}{untried}"


def untried_text(result: ShrinkResult) -> str:
    """A sentence on what there was no time for; empty if all was tried."""
    count = len(result.left_out)
    if not count:
        return ""
    ideas = "1 idea was" if count == 1 else f"{count} ideas were"
    seconds = result.budget_seconds
    budget = f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:.2g} s"
    return f" {ideas} not tried or not finished: the budget of {budget} ended first."


def _dense_verdict(result: ShrinkResult, limits: SearchLimits) -> str:
    chosen, count = result.chosen, result.num_pruned
    form = chosen.name.removeprefix("dense ")
    if is_trained_dense(chosen.candidate):
        form = f"{chosen.precision} and trained on the same data"
    figures = "" if form == "fp32" else f" ({_figures(chosen)})"
    if not count and result.left_out:
        # Nothing is known of pruned models, so nothing is said against them.
        return f"Dense in {form}{figures} is the best of what was tried; no pruned model was tried."
    stay = f"Stay dense, in {form}{figures}"
    if not count:
        return f"{stay}: no pruned model was tried, because none was forecast to be faster."
    tried = "the one pruned model that was tried is not faster"
    if count > 1:
        tried = f"none of the {count} pruned models that were tried is faster"
    return f"{stay}: {tried} within the limits (a loss of {limits.max_loss:.2%})."


def _described(point: Point) -> str:
    return f"{point.name}: {_figures(point)}"


def _figures(point: Point) -> str:
    busy = ", timed on a busy machine" if point.doubt else ""
    return f"{point.speedup:.2f}x dense fp32{busy}, {point.lost:+.2%} of the quality lost"


def card_text(result: ShrinkResult, *, is_described: bool, has_images: bool) -> str:
    """Markdown; figures are those of the search.

    Args:
        result: of the search.
        is_described: whether the artifact says how its model is built.
        has_images: whether it reads images, which are then compiled by example.
    """
    chosen, dense = result.chosen, result.points[0]
    times = f"{chosen.ms * chosen.speedup:.2f}", f"{chosen.ms:.2f}"
    if chosen.doubt:
        # Those of a busy machine are not written down for good.
        times = (f"not measured ({chosen.doubt})",) * 2
    rows = [
        (f"{result.quality_name}, data nothing was chosen by", f"{result.dense_quality:.2f}",
         f"{result.quality:.2f}"),
        (f"{result.quality_name}, data it was chosen by", f"{dense.quality:.2f}",
         f"{chosen.quality:.2f}"),
        (f"ms, {result.timed}, measured in turn", *times),
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
        *([result.long_texts.text, ""] if result.long_texts else []),
        f"Load with `{load}` and run with `gossamer.compile(model,"
        f' precision="{chosen.precision}"{example})`.',
        "",
        f"Measured on: {machine}.",
        "",
        "Data and licence: not stated yet.",
        "",
    ]
    return "\n".join(lines)

# SPDX-License-Identifier: Apache-2.0
"""The outcome of a search in words: what was found, out of what was tried, and what was not."""

from typing import TYPE_CHECKING

from gossamer.search.candidates import is_trained_dense
from gossamer.search.front import Limits, best, trained_beside
from gossamer.search.trial import Point

if TYPE_CHECKING:
    from gossamer.search.shrinking import ShrinkResult

OUT_OF_TIME = (
    "The budget ended before the ideas did: the same command with a larger one goes on from here."
)


def verdict(result: "ShrinkResult", limits: Limits) -> str:
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


def untried_text(result: "ShrinkResult") -> str:
    """A sentence on what there was no time for; empty if all was tried."""
    count = len(result.left_out)
    if not count:
        return ""
    ideas = "1 idea was" if count == 1 else f"{count} ideas were"
    return f" {ideas} not tried or not finished: the budget of {_minutes(result)} ended first."


def _dense_verdict(result: "ShrinkResult", limits: Limits) -> str:
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


def _minutes(result: "ShrinkResult") -> str:
    seconds = result.budget_seconds
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:.2g} s"

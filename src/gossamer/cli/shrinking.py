# SPDX-License-Identifier: Apache-2.0
"""The work behind `gossamer shrink`."""

from pathlib import Path

from gossamer.cli.output import Output
from gossamer.cli.sources import load_source
from gossamer.io.samples import TOKENIZER_FILE, make_tokenizer
from gossamer.report.html import write_html
from gossamer.search.front import Limits
from gossamer.search.page import search_page
from gossamer.search.shrinking import ShrinkResult, shrink
from gossamer.search.trial import Trial


def run_shrink(
    out: Output,
    model: str,
    data: Path,
    target: Path,
    limits: Limits,
    budget_minutes: float,
    choose: Path | None,
    report: Path | None,
) -> ShrinkResult:
    """Load, search, write the report."""
    with out.stage("loading"):
        source = load_source(model)

    def told(trial: Trial) -> None:
        for point in trial.points:
            out.note(
                f"{point.name}: {point.lost:+.2%} lost, {point.ms:.2f} ms,"
                f" {point.speedup:.2f}x dense ({trial.seconds:.0f} s)"
            )

    result = shrink(
        source.model,
        data,
        target,
        tokenizer=make_tokenizer(source.beside.get(TOKENIZER_FILE)),
        max_loss=limits.max_loss,
        max_ms=limits.max_ms,
        max_bytes=limits.max_bytes,
        budget_minutes=budget_minutes,
        choose=choose,
        report=report,
        beside=source.beside,
        on_trial=told,
    )
    page = search_page(result, limits, f"{source.name}, shrunk", "1 x 128 tokens")
    write_html(page, result.work / "report.html")
    return result

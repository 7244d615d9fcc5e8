# SPDX-License-Identifier: Apache-2.0
"""The work behind `gossamer prune`: load, prune, time, save."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.cli.example_input import example_input
from gossamer.cli.output import Output, table
from gossamer.cli.sources import Source, directory_bytes, load_source
from gossamer.io import save
from gossamer.io.opened import check_replaceable
from gossamer.recipes.oneshot import sparsify
from gossamer.report.card import Card, render_card
from gossamer.report.comparison import Comparison, Figure
from gossamer.report.machine import describe_machine
from gossamer.report.report import Report, format_bytes
from gossamer.run.compiler import compile as compile_model
from gossamer.run.explanation import Explanation, explain

if TYPE_CHECKING:
    from rich.table import Table

# Below it the sparse kernels rarely win, so the user hears it before the work starts.
_MIN_USEFUL_SPARSITY = 0.4
_LIMITS = (
    "Quality was not measured: one-shot pruning without recovery training usually costs some.",
    "Times hold for the machine above; gossamer.compile measures again on yours.",
)


@dataclass(frozen=True)
class PruneRequest:
    """What the user typed; `recipe` holds the arguments of `gossamer.sparsify`."""

    model: str
    target: Path
    recipe: dict[str, Any]
    form: str
    tokens: int


@dataclass(frozen=True)
class PruneOutcome:
    """What to show."""

    report: Report
    comparison: Comparison
    document: dict[str, Any]
    remarks: list[str]

    def layer_table(self) -> "Table":
        """The plan as it was carried out, one line per layer."""
        shown = table(
            "layer", "shape", "pattern", ">sparsity", ">dense", ">pruned", "format", "note"
        )
        for row in self.report.layers:
            shown.add_row(
                row.name,
                "x".join(map(str, row.shape)),
                row.pattern,
                f"{row.sparsity:.1%}",
                format_bytes(row.bytes_dense),
                format_bytes(row.bytes_sparse),
                row.format,
                row.note,
            )
        return shown


def run_prune(request: PruneRequest, out: Output) -> PruneOutcome:
    """Everything `gossamer prune` does; raises before any work if OUT cannot be written."""
    check_replaceable(request.target)
    sparsity = request.recipe["sparsity"]
    if sparsity is not None and sparsity < _MIN_USEFUL_SPARSITY:
        out.note(
            f"At {sparsity:.0%} zeros dense kernels are usually faster: expect a smaller file and"
            " no speed-up."
        )
    with out.stage("loading"):
        source = load_source(request.model)
    example = example_input(source.model, request.tokens)
    with out.stage("pruning, timing dense and pruned"):
        data = None if example is None else [example.batch]
        report = sparsify(source.model, request.recipe, data=data)
        tokens = request.tokens if example is None else example.tokens
        fast = compile_model(source.model, tokens=tokens)
    timed = "no input could be made up" if example is None else example.text
    with out.stage("saving"):
        return _save(source, request, report, explain(fast), timed)


def _save(
    source: Source, request: PruneRequest, report: Report, layers: Explanation, timed: str
) -> PruneOutcome:
    machine = describe_machine()
    figures = _figures(report, timed)
    recipe = {key: value for key, value in request.recipe.items() if value is not None}
    content = {
        **report.to_dict(),
        "base": source.name,
        "recipe": recipe,
        "timed_with": timed,
        "kernels": layers.to_dicts(),
        "machine": machine,
    }
    comparison = Comparison(("dense", "pruned"), tuple(figures))
    card = Card(
        title=request.target.resolve().name,
        base=source.name,
        method={key: str(value) for key, value in recipe.items()},
        report=report,
        comparison=comparison,
        machine=machine,
        limits=(*_LIMITS, *report.notes),
    )
    save(
        source.model,
        request.target,
        format=request.form,
        report=content,
        card=render_card(card),
        beside=source.beside,
    )
    on_disk = directory_bytes(request.target)
    before = report.bytes_dense if source.disk_bytes is None else source.disk_bytes
    shown = Comparison(
        ("dense", "pruned"),
        (
            _quality(report),
            Figure(f"bytes on disk ({request.form})", "bytes", (before, on_disk)),
            *figures[1:],
        ),
    )
    document = {**content, "out": str(request.target), "comparison": shown.to_dict()}
    remarks = [f"Saved to {request.target}. {_speed_remark(layers)}", *report.notes]
    return PruneOutcome(report, shown, document, remarks)


def _figures(report: Report, timed: str) -> list[Figure]:
    return [
        _quality(report),
        Figure("bytes of tensors", "bytes", (report.bytes_dense, report.bytes_sparse)),
        Figure(f"ms per forward ({timed})", "ms", (report.ms_dense, report.ms_sparse)),
    ]


def _quality(report: Report) -> Figure:
    return Figure("quality", "score", (report.quality_dense, report.quality_sparse))


def _speed_remark(layers: Explanation) -> str:
    sparse = {row.name for row in layers if row.kernel != "dense"}
    if not sparse:
        return "No layer runs faster sparse here: no speed-up is to be expected."
    return f"{len(sparse)} layers run on sparse kernels; 'gossamer explain' says which and why."

# SPDX-License-Identifier: Apache-2.0
"""The work behind `gossamer prune`: load, prune, time, save."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.cli.models.sources import Source, directory_bytes, load_source
from gossamer.cli.pruning_input import (
    Prepared,
    PruneFiles,
    PruneRequest,
    check_request,
    count_targets,
    open_journal,
    prepare,
    run_key,
)
from gossamer.cli.shell.output import Output, table
from gossamer.cli.shell.resuming import told_how_to_resume
from gossamer.errors import RecipeError
from gossamer.io import save
from gossamer.pruning.calibration.calibrated import Journal
from gossamer.pruning.calibration.journal import model_digest
from gossamer.recipes.faults import Fault, RecipeFaults
from gossamer.recipes.loader import load_recipe, make_recipe
from gossamer.recipes.schema import Recipe
from gossamer.report.card import Card, render_card
from gossamer.report.comparison import Comparison, Figure
from gossamer.report.html import write_html
from gossamer.report.machine import describe_machine
from gossamer.report.page import Page
from gossamer.report.report import Report, format_bytes
from gossamer.running.layers.compiler import compile as compile_model
from gossamer.running.layers.explanation import Explanation, explain
from gossamer.runs.curves import curves
from gossamer.runs.execute import execute
from gossamer.runs.kept_run import KeptRun
from gossamer.runs.stages.prune import StageInput
from gossamer.training.run_files.folder import RunFolder
from gossamer.training.run_files.metrics import read_metrics
from gossamer.runs.stages import StageInput
from gossamer.training.loop.metrics import read_metrics
from gossamer.training.loop.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

# Below it the sparse kernels rarely win, so the user hears it before the work starts.
_MIN_USEFUL_SPARSITY = 0.4
_NOT_MEASURED = (
    "Quality: not measured. Pruning costs quality, and nobody knows how much of it this model has"
    " left."
)
_HOW_TO_MEASURE = (
    " To know it, give data: 'gossamer prune ... --data FILE' (or --eval FILE) measures it, and"
    " 'gossamer shrink MODEL --data FILE -o OUT' looks for the fastest model within a limit."
)


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


def chosen_recipe(
    name: str | None, overrides: Sequence[str], flags: dict[str, Any], given: Sequence[str]
) -> Recipe:
    """The recipe that is named, or one stage made of the flags."""
    if name is not None:
        if given:
            raise RecipeError(
                f"--{given[0].rstrip('s')}: is part of the recipe {name}. Change it there, or with"
                " --set."
            )
        return load_recipe(name, overrides)
    if overrides:
        raise RecipeError("--set: changes a recipe; name one with --recipe, or use the flags.")
    step = {key: value for key, value in flags.items() if value is not None}
    try:
        return make_recipe({"gossamer": 1, "stages": [{"prune": step}]}, "gossamer prune")
    except RecipeFaults as error:
        # The user typed flags, and never saw a recipe.
        raise RecipeFaults([_of_flag(fault) for fault in error.faults]) from error


def _of_flag(fault: Fault) -> Fault:
    """A fault of the recipe made of flags, told of the flag."""
    field = fault.path.rpartition(".")[2]
    flag = {"method": "scorer", "targets": "target"}.get(field, field)
    return replace(fault, source=f"--{flag}", path="")


def run_prune(request: PruneRequest, out: Output) -> PruneOutcome:
    """Everything `gossamer prune` does; mistakes in the request are told before any work."""
    files = check_request(request)
    recipe = request.recipe
    _warn_of_few_zeros(recipe, out)
    if all(stage.recover is None for stage in recipe.stages):
        return _run(request, files, None, out)
    folder = RunFolder(request.target)
    with told_how_to_resume(), folder.opened(resume=request.resume):
        return _run(request, files, folder, out)


def _run(
    request: PruneRequest, files: PruneFiles, folder: RunFolder | None, out: Output
) -> PruneOutcome:
    recipe = request.recipe
    with out.stage("loading"):
        source = load_source(request.model, say=out.note)
        prepared = prepare(source, request, files)
    teacher = None if request.teacher is None else load_source(request.teacher).model
    journal = open_journal(source, request, prepared)
    given = StageInput(
        loss=prepared.loss,
        journal=journal or Journal(),
        teacher=teacher,
        samples=prepared.recovery,
        kept=None if folder is None else _kept(folder, source, request, prepared, teacher),
        say=lambda text: out.note(f"recover: {text}"),
    )
    num_layers = count_targets(source.model, recipe)
    with out.stage("pruning, timing dense and pruned", num_layers) as stage:
        given = replace(given, progress=lambda done: stage.advance())
        measure = None if prepared.quality is None else prepared.quality.measure
        report = execute(recipe, source.model, prepared.batches, evaluate=measure, given=given)
        fast = compile_model(source.model, tokens=prepared.tokens)
    with out.stage("saving"):
        outcome = _save(source, request, report, explain(fast), prepared)
        if folder is not None:
            outcome.remarks.append(f"Curves: {_write_page(request, outcome, folder)}")
            folder.remove_checkpoints()
    if journal is not None:
        journal.remove()
    return outcome


def _kept(
    folder: RunFolder,
    source: Source,
    request: PruneRequest,
    prepared: Prepared,
    teacher: "nn.Module | None",
) -> KeptRun:
    key = run_key(source.model, request.recipe, prepared)
    return KeptRun(folder, key | ({} if teacher is None else {"teacher": model_digest(teacher)}))


def _write_page(request: PruneRequest, outcome: PruneOutcome, folder: RunFolder) -> Path:
    """The curves of recovery beside what it gave; times stand here, not in the artifact."""
    found = [
        curve
        for number, stage in enumerate(request.recipe.stages)
        if stage.recover is not None
        for curve in curves(read_metrics(folder.of_stage(number).metrics))
    ]
    page = Page(
        title=f"Recovered: {request.target.resolve().name}",
        lead=f"{request.model}, pruned to {outcome.report.sparsity:.0%} zeros in"
        f" {len(outcome.report.layers)} layers and trained with the dense model as teacher.",
        comparison=outcome.comparison,
        layers=(),
        machine=describe_machine(),
        curves=found,
        notes=tuple(outcome.report.notes),
    )
    return write_html(page, folder.report)


def _warn_of_few_zeros(recipe: Recipe, out: Output) -> None:
    for stage in recipe.stages:
        sparsity = stage.prune.sparsity if stage.prune is not None else None
        if sparsity is not None and sparsity < _MIN_USEFUL_SPARSITY:
            out.note(
                f"At {sparsity:.0%} zeros dense kernels are usually faster: expect a smaller file"
                " and no speed-up."
            )


def _save(
    source: Source,
    request: PruneRequest,
    report: Report,
    layers: Explanation,
    prepared: Prepared,
) -> PruneOutcome:
    machine = describe_machine()
    figures = _figures(report, prepared)
    recipe = request.recipe.model_dump(mode="json", exclude_none=True)
    content = {
        **report.to_dict(),
        "base": source.name,
        "recipe": recipe,
        "timed_with": prepared.timed,
        "quality_data": None if prepared.quality is None else prepared.quality.data,
        "quality_measured": report.quality_sparse is not None,
        "kernels": layers.to_dicts(),
        "machine": machine,
    }
    comparison = Comparison(("dense", "pruned"), tuple(figures))
    card = Card(
        title=request.target.resolve().name,
        base=source.name,
        method=method_lines(request.recipe),
        report=report,
        comparison=comparison,
        machine=machine,
        limits=(*_limits(prepared), *report.notes),
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
            figures[0],
            Figure(f"bytes on disk ({request.form})", "bytes", (before, on_disk)),
            *figures[1:],
        ),
    )
    document = {**content, "out": str(request.target), "comparison": shown.to_dict()}
    remarks = [f"Saved to {request.target}. {_speed_remark(layers)}", *report.notes]
    if report.quality_sparse is None:
        remarks.append(_NOT_MEASURED + _HOW_TO_MEASURE)
    return PruneOutcome(report, shown, document, remarks)


def _figures(report: Report, prepared: Prepared) -> list[Figure]:
    measured = prepared.quality
    name = "quality" if measured is None else f"{measured.name} ({measured.data})"
    return [
        Figure(name, "score", (report.quality_dense, report.quality_sparse)),
        Figure("bytes of tensors", "bytes", (report.bytes_dense, report.bytes_sparse)),
        Figure(
            f"ms per forward ({prepared.timed})",
            "ms",
            (report.ms_dense, report.ms_sparse),
            report.doubt,
        ),
    ]


def _limits(prepared: Prepared) -> tuple[str, ...]:
    measured = prepared.quality
    quality = (
        _NOT_MEASURED + _HOW_TO_MEASURE
        if measured is None
        else f"Quality was measured on {measured.data}."
    )
    return quality, "Times hold for the machine above; gossamer.compile measures again on yours."


def _speed_remark(layers: Explanation) -> str:
    sparse = {row.name for row in layers if row.is_sparse}
    if not sparse:
        return "No layer runs faster sparse here: no speed-up is to be expected."
    return f"{len(sparse)} layers run on sparse kernels; 'gossamer explain' says which and why."


def method_lines(recipe: Recipe) -> dict[str, str]:
    """The recipe for the model card: one line per setting, stages numbered if there are several."""
    lines: dict[str, str] = {}
    for number, stage in enumerate(recipe.stages, start=1):
        prefix = "" if len(recipe.stages) == 1 else f"stage {number}: "
        content = stage.step.model_dump(exclude_none=True)
        lines |= {f"{prefix}{key}": str(value) for key, value in content.items()}
    return lines

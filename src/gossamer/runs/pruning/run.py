# SPDX-License-Identifier: Apache-2.0
"""A pruning run from the model to the artifact: load, prune, time, save."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.io import save
from gossamer.pruning.calibration import Journal, LayerProgress
from gossamer.pruning.calibration.journal import model_digest
from gossamer.pruning.targets import find_targets
from gossamer.recipes import Recipe
from gossamer.recipes.stages import Prune, Recover
from gossamer.report import Comparison, Figure, Page, Report, describe_machine, write_html
from gossamer.report.card import render_card
from gossamer.running.layers import Explanation, explain
from gossamer.running.layers import compile as compile_model
from gossamer.runs.curves import curves
from gossamer.runs.executor import execute
from gossamer.runs.kept_run import KeptRun
from gossamer.runs.pruning.request import (
    PruneFiles,
    PruneInput,
    PruneRequest,
    check_request,
    open_journal,
    prepare,
    run_key,
)
from gossamer.runs.sources import Source, directory_bytes
from gossamer.runs.stages import StageInput
from gossamer.runs.voice import Voice, told_how_to_resume
from gossamer.training.run_files import RunFolder, read_metrics

# Below it the sparse kernels rarely win, so the user hears it before the work starts.
_MIN_USEFUL_SPARSITY = 0.4
_MODELS = ("dense", "pruned")
_NOT_MEASURED = (
    "Quality: not measured. Pruning costs quality, and nobody knows how much of it this model has"
    " left. To know it, give data: 'gossamer prune ... --data FILE' (or --eval FILE) measures it,"
    " and 'gossamer shrink MODEL --data FILE -o OUT' looks for the fastest model within a limit."
)


@dataclass(frozen=True)
class PruneOutcome:
    """What a run gave.

    Attributes:
        report: what pruning did.
        comparison: the artifact beside the dense model.
        document: everything as plain data.
        remarks: lines for people.
    """

    report: Report
    comparison: Comparison
    document: dict[str, Any]
    remarks: list[str]


def run_prune(request: PruneRequest, voice: Voice) -> PruneOutcome:
    """Everything that `gossamer prune` does; mistakes in the request are told before any work."""
    files = check_request(request)
    for step in request.recipe.steps_of(Prune):
        if step.sparsity is not None and step.sparsity < _MIN_USEFUL_SPARSITY:
            voice.note(
                f"At {step.sparsity:.0%} zeros dense kernels are usually faster: expect a smaller"
                " file and no speed-up."
            )
    if request.given is not None or not request.recipe.steps_of(Recover):
        return _run(request, files, None, voice)
    folder = RunFolder(request.target)
    with told_how_to_resume(request.how_to_resume), folder.opened(resume=request.resume):
        return _run(request, files, folder, voice)


def _run(
    request: PruneRequest, files: PruneFiles, folder: RunFolder | None, voice: Voice
) -> PruneOutcome:
    recipe = request.recipe
    with voice.stage("loading"):
        source = request.origin.load(voice.note)
        prepared = prepare(source, request, files)
    model, journal, given = source.model, None, request.given
    if given is None:
        journal = open_journal(source, request, prepared)
        given = _stage_input(model, request, prepared, folder, voice)
        given = replace(given, journal=journal or Journal())
    num_layers = sum(
        len(find_targets(model, step.targets, step.ignore)) for step in recipe.steps_of(Prune)
    )
    compiled: list[nn.Module] = []
    title = "pruning, timing dense and pruned" if request.timed else "pruning"
    with voice.stage(title, num_layers) as stage:
        told = given.progress

        def progress(done: LayerProgress) -> None:
            stage.advance()
            told(done)

        report = execute(
            recipe,
            model,
            prepared.batches,
            evaluate=None if prepared.quality is None else prepared.quality.measure,
            given=replace(given, progress=progress),
            timed=request.timed,
            on_compiled=compiled.append,
        )
        # What was timed is explained; where nothing could be timed, nothing is compiled yet.
        if request.timed and not compiled:
            compiled.append(compile_model(model, tokens=prepared.tokens))
    with voice.stage("saving"):
        if not request.timed:
            save(model, request.target, format=request.form, beside=source.beside)
            outcome = PruneOutcome(report, Comparison(_MODELS, ()), report.to_dict(), [])
        else:
            outcome = _save(source, request, report, explain(compiled[0]), prepared)
        if folder is not None:
            outcome.remarks.append(f"Curves: {_write_page(request, outcome, folder)}")
            folder.remove_checkpoints()
    if journal is not None:
        journal.remove()
    return outcome


def _stage_input(
    model: nn.Module,
    request: PruneRequest,
    prepared: PruneInput,
    folder: RunFolder | None,
    voice: Voice,
) -> StageInput:
    """What the stages of a request use, but for the journal."""
    teacher = None if request.teacher is None else request.teacher.load(lambda text: None).model
    kept = None
    if folder is not None:
        key = run_key(model, request.recipe, prepared)
        if teacher is not None:
            key["teacher"] = model_digest(teacher)
        kept = KeptRun(folder, key)
    return StageInput(
        loss=prepared.loss,
        teacher=teacher,
        samples=prepared.recovery,
        kept=kept,
        say=lambda text: voice.note(f"recover: {text}"),
    )


def _write_page(request: PruneRequest, outcome: PruneOutcome, folder: RunFolder) -> Path:
    """The curves of recovery with what it gave; times stand here, not in the artifact."""
    found = [
        curve
        for number, stage in enumerate(request.recipe.stages)
        if stage.recover is not None
        for curve in curves(read_metrics(folder.of_stage(number).metrics))
    ]
    page = Page(
        title=f"Recovered: {request.target.resolve().name}",
        lead=f"{request.origin.text}, pruned to {outcome.report.sparsity:.0%} zeros in"
        f" {len(outcome.report.layers)} layers and trained with the dense model as teacher.",
        comparison=outcome.comparison,
        curves=found,
        notes=tuple(outcome.report.notes),
    )
    return write_html(page, folder.report)


def _save(
    source: Source,
    request: PruneRequest,
    report: Report,
    layers: Explanation,
    prepared: PruneInput,
) -> PruneOutcome:
    machine, quality = describe_machine(), prepared.quality
    name = "quality" if quality is None else f"{quality.name} ({quality.data})"
    figures = (
        Figure(name, "score", (report.quality_dense, report.quality_sparse)),
        Figure("bytes of tensors", "bytes", (report.bytes_dense, report.bytes_sparse)),
        Figure(
            f"ms per forward ({prepared.timed})",
            "ms",
            (report.ms_dense, report.ms_sparse),
            report.doubt,
        ),
    )
    content = {
        **report.to_dict(),
        "base": source.name,
        "recipe": request.recipe.model_dump(mode="json", exclude_none=True),
        "timed_with": prepared.timed,
        "quality_data": None if quality is None else quality.data,
        "quality_measured": report.quality_sparse is not None,
        "kernels": layers.to_dicts(),
        "machine": machine,
    }
    card = render_card(
        title=request.target.resolve().name,
        base=source.name,
        method=method_lines(request.recipe),
        report=report,
        comparison=Comparison(_MODELS, figures),
        machine=machine,
        limits=(
            _NOT_MEASURED if quality is None else f"Quality was measured on {quality.data}.",
            "Times hold for the machine above; gossamer.compile measures again on yours.",
            *report.notes,
        ),
    )
    save(
        source.model,
        request.target,
        format=request.form,
        report=content,
        card=card,
        beside=source.beside,
    )
    before = report.bytes_dense if source.disk_bytes is None else source.disk_bytes
    on_disk = (before, directory_bytes(request.target))
    size = Figure(f"bytes on disk ({request.form})", "bytes", on_disk)
    shown = Comparison(_MODELS, (figures[0], size, *figures[1:]))
    document = {**content, "out": str(request.target), "comparison": shown.to_dict()}
    sparse = {row.name for row in layers if row.is_sparse}
    speed = "No layer runs faster sparse here: no speed-up is to be expected."
    if sparse:
        speed = (
            f"{len(sparse)} layers run on sparse kernels; 'gossamer explain' says which and why."
        )
    remarks = [f"Saved to {request.target}. {speed}", *report.notes]
    if report.quality_sparse is None:
        remarks.append(_NOT_MEASURED)
    return PruneOutcome(report, shown, document, remarks)


def method_lines(recipe: Recipe) -> dict[str, str]:
    """The recipe for the model card: one line per setting, stages numbered if there are several."""
    lines: dict[str, str] = {}
    for number, stage in enumerate(recipe.stages, start=1):
        prefix = "" if len(recipe.stages) == 1 else f"stage {number}: "
        content = stage.step.model_dump(exclude_none=True)
        lines |= {f"{prefix}{key}": str(value) for key, value in content.items()}
    return lines

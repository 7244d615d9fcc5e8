# SPDX-License-Identifier: Apache-2.0
"""A training run from the request to the artifact, in one process or as a rank of several.

What goes into the artifact holds no times, so that a resumed run writes the same bytes; times stand
in metrics.jsonl and on the page beside it.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.io import save
from gossamer.io.artifact.destination import check_destination
from gossamer.nn.layer_kinds import sparse_layers, title_of
from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.surgery.channels import cut_sizes
from gossamer.pruning import LayerResult
from gossamer.recipes.stages.train import Mesh
from gossamer.report import (
    Comparison,
    Figure,
    Page,
    Report,
    describe_machine,
    format_bytes,
    write_html,
)
from gossamer.report.card import render_card
from gossamer.runs.curves import Records, curves
from gossamer.runs.reporting import dense_bytes, make_report
from gossamer.runs.training.plan import TrainingPlan, plan_run
from gossamer.runs.training.request import TrainRequest
from gossamer.runs.training.stage import Trained, run_training
from gossamer.runs.voice import Progress, Quiet, Voice, told_how_to_resume
from gossamer.training.distributed import picture, split_batch
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined, restarts, world_of_environment
from gossamer.training.distributed.tables import TableSettings
from gossamer.training.run_files import RunFolder, read_metrics

_NO_TIME = "The time of a forward pass was not measured; run 'gossamer explain' on the artifact."


@dataclass(frozen=True)
class TrainResult:
    """What a training run gave.

    Attributes:
        report: the trained model and its dense form in numbers.
        path: the artifact.
        run: the folder with checkpoints, metrics and curves.
        page: the curves.
        steps: optimizer steps that were taken, in earlier parts of the run, too.
        quality: what was measured at the end, by name.
        resumed: whether it continued from a checkpoint.
        document: everything as plain data.
    """

    report: Report
    path: Path
    run: Path
    page: Path
    steps: int
    quality: dict[str, float]
    resumed: bool
    document: dict[str, Any]


def run_train(request: TrainRequest, target: Path, voice: Voice) -> TrainResult | None:
    """Everything that `gossamer train` does; None on a rank that does not lead."""
    train = request.train
    mesh = train.mesh
    if world_of_environment() is None and (mesh is None or mesh.sizes.num_ranks == 1):
        return _run_here(request, target, voice, None)
    mesh = mesh or Mesh()
    timeouts = Timeouts(mesh.start_timeout, mesh.timeout, mesh.heartbeat)
    with joined(mesh.sizes, timeouts) as session:
        settings = MeshSettings(
            wire=mesh.wire,
            tables=TableSettings(**mesh.tables.model_dump(exclude={"shard"}), seed=train.seed),
            shard_tables=mesh.tables.shard,
            microbatches=mesh.num_microbatches(train.batch),
            schedule=mesh.schedule,
            seed=train.seed,
            room=RunFolder(target).path,
        )
        if session.is_lead:
            split = split_batch(mesh.sizes, train.batch, settings.microbatches)
            voice.note(picture(mesh.sizes, split))
        else:
            voice = Quiet()
        # What torchrun started again continues where the last checkpoint was taken.
        request = replace(request, resume=request.resume or restarts() > 0)
        return _run_here(request, target, voice, ProcessMesh(session, settings))


def plan_train(request: TrainRequest, target: Path, voice: Voice) -> TrainingPlan:
    """Read the data, build the model, time one step; write nothing."""
    check_destination(target)
    with voice.stage("reading data, building the model, timing a step"):
        return plan_run(request, str(target))


def _run_here(
    request: TrainRequest, target: Path, voice: Voice, grid: ProcessMesh | None
) -> TrainResult | None:
    is_lead = grid is None or grid.is_lead
    if is_lead:
        check_destination(target)
    folder = RunFolder(target)
    stages: list[Progress] = []
    with told_how_to_resume(request.how_to_resume), ExitStack() as stack:
        if is_lead:
            stack.enter_context(folder.opened(resume=request.resume))
        with ExitStack() as shown:

            def progress(step: int, steps: int) -> None:
                # Begun here: the length may follow from the data, and a resumed run has less.
                if not stages:
                    stages.append(shown.enter_context(voice.stage("training", steps - step + 1)))
                stages[0].advance()

            trained = run_training(request, folder, say=voice.note, progress=progress, grid=grid)
        if not is_lead:
            return None
        with voice.stage("saving"):
            return _save(trained, request, target, folder)


def _save(trained: Trained, request: TrainRequest, target: Path, folder: RunFolder) -> TrainResult:
    report, loop, task = _training_report(trained), trained.loop, trained.task
    records, machine = read_metrics(folder.metrics), describe_machine()
    scores = [Figure(name, "score", (None, value)) for name, value in trained.quality.items()]
    size = Figure("bytes of tensors", "bytes", (report.bytes_dense, report.bytes_sparse))
    comparison = Comparison(("dense", "trained"), (*scores, size))
    names = ("step", "layers", "weights", "values", "bytes_before", "bytes_after", "modes")
    found = (record for record in records if record["kind"] == "compaction")
    # report.json of the artifact: nothing in it depends on a clock.
    content = {
        **report.to_dict(),
        "base": f"trained from scratch: {task.name}",
        "recipe": request.recipe.model_dump(mode="json", exclude_none=True),
        "quality": dict(trained.quality),
        "training": {
            "steps": loop.step,
            "batches": loop.taken,
            "skipped": loop.skipped,
            "data": task.digest,
            "compaction": next(({name: each[name] for name in names} for each in found), None),
        },
        "machine": machine,
    }
    stage = request.train.model_dump(mode="json", exclude_none=True)
    card = render_card(
        title=folder.target.name,
        base=f"a fresh model, {loop.settings.steps} steps on {task.name}",
        method={key: str(value) for key, value in stage.items()},
        report=report,
        comparison=comparison,
        machine=machine,
        limits=("Quality was measured on held-out data of the same source.", *report.notes),
    )
    save(
        loop.model.eval(),
        target,
        report=content,
        card=card,
        beside=dict(task.beside),
    )
    page = _write_page(trained, report, comparison, records, folder.report)
    effects = [r for r in records if r["kind"] == "compaction-effect"]
    places = {"out": str(target), "run": str(folder.path), "report": str(page)}
    times = (effects[-1]["ms_before"], effects[-1]["ms_after"]) if effects else None
    return TrainResult(
        report,
        target,
        folder.path,
        page,
        loop.step,
        dict(trained.quality),
        trained.resumed,
        {**content, **places, "step_ms": times},
    )


def _training_report(trained: Trained) -> Report:
    """The trained model beside its dense form."""
    model = trained.loop.model
    results = _layers(model)
    weights, kept = sum(r.numel for r in results), sum(r.nnz for r in results)
    parameters = sum(param.numel() for param in model.parameters())
    compact = sum(
        m.matrix_shape[0] * m.matrix_shape[1] - m.nnz for _, m in sparse_layers(model, "compact")
    )
    quality = next(iter(trained.quality.values()), None)
    # A slim model has other bytes than its class.
    held = dense_bytes(model) if cut_sizes(model) else trained.dense_bytes
    report = make_report(model, results, held, quality_sparse=quality)
    return replace(
        report,
        bytes_dense=trained.dense_bytes,
        sparsity=1 - kept / weights if weights else 0.0,
        global_sparsity=(weights - kept) / max(parameters + compact, 1),
        notes=[*report.notes, *trained.task.notes, _NO_TIME],
    )


def _write_page(
    trained: Trained, report: Report, comparison: Comparison, records: Records, path: Path
) -> Path:
    """report.html: loss, sparsity, memory and step time over the run."""
    loop = trained.loop
    quality = ", ".join(f"{name} {value:.4g}" for name, value in trained.quality.items())
    page = Page(
        title=f"Training: {trained.task.name}",
        lead=f"{loop.step} steps, {report.sparsity:.1%} zeros in {len(report.layers)} layers."
        f" {quality}",
        comparison=comparison,
        curves=curves(records),
        notes=(*report.notes, *_traffic(records)),
    )
    return write_html(page, path)


def _traffic(records: Records) -> list[str]:
    """What the leading rank sends in a step, once masks are final."""
    found = [record for record in records if record["kind"] == "traffic"]
    parts = ", ".join(
        f"{format_bytes(count)} of {purpose}"
        for record in found[-1:]
        for purpose, count in record.items()
        if purpose not in ("kind", "step")
    )
    return [f"Rank 0 sends {parts} in every step."] if found else []


def _layers(model: nn.Module) -> list[LayerResult]:
    """Every masked and compact weight once; tied layers are named beside it."""
    found: dict[int, list[tuple[str, SparseLayer]]] = {}
    for name, module in sparse_layers(model):
        found.setdefault(id(module.trained()), []).append((name, module))
    return [
        LayerResult(
            name=name,
            kind=title_of(module),
            shape=module.weight_shape,
            pattern=module.pattern,
            nnz=module.nnz,
            itemsize=module.trained().element_size(),
            tied=tuple(other for other, _ in twins),
            mask_digest=module.mask_digest(),
        )
        for (name, module), *twins in found.values()
    ]

# SPDX-License-Identifier: Apache-2.0
"""A training run from the request to the artifact, in one process or as a rank of several."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gossamer.io import save
from gossamer.io.artifact import check_destination
from gossamer.recipes.stages import Mesh
from gossamer.report import Report
from gossamer.runs.training.plan import TrainingPlan, plan_run
from gossamer.runs.training.report import (
    report_content,
    training_card,
    training_report,
    write_page,
)
from gossamer.runs.training.request import TrainRequest
from gossamer.runs.training.stage import Trained, run_training
from gossamer.runs.voice import Progress, Quiet, Voice, told_how_to_resume
from gossamer.training.distributed import picture, split_batch
from gossamer.training.distributed.placement import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes import Timeouts, joined, restarts, world_of_environment
from gossamer.training.run_files import RunFolder, read_metrics


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
            microbatches=mesh.num_microbatches(train.batch),
            schedule=mesh.schedule,
            seed=train.seed,
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
    report, loop = training_report(trained), trained.loop
    records = read_metrics(folder.metrics)
    content = report_content(trained, report, request.recipe, records)
    save(
        loop.model.eval(),
        target,
        report=content,
        card=training_card(trained, report, request.recipe, folder.target.name),
        beside=dict(trained.task.beside),
    )
    page = write_page(trained, report, records, folder.report)
    effects = [r for r in records if r["kind"] == "compaction-effect"]
    places = {"out": str(target), "run": str(folder.path), "report": str(page)}
    times = (effects[-1]["ms_before"], effects[-1]["ms_after"]) if effects else None
    document = {**content, **places, "step_ms": times}
    return TrainResult(
        report,
        target,
        folder.path,
        page,
        loop.step,
        dict(loop.quality),
        trained.resumed,
        document,
    )

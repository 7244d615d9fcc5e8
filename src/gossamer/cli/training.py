# SPDX-License-Identifier: Apache-2.0
"""The work behind `gossamer train`: find the model, train, save; or plan and write nothing."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.cli.models.sources import load_function
from gossamer.cli.shell.grid_exit import ends_for_good
from gossamer.cli.shell.output import Output, table
from gossamer.cli.shell.progress import Stage
from gossamer.cli.shell.resuming import told_how_to_resume
from gossamer.io import save
from gossamer.io.artifact.destination import check_destination
from gossamer.recipes.schema import Recipe
from gossamer.recipes.stages.mesh import Mesh
from gossamer.report.report import Report, format_bytes
from gossamer.runs.training.plan import TrainingPlan, plan_run
from gossamer.runs.training.report import (
    report_content,
    training_card,
    training_report,
    write_page,
)
from gossamer.runs.training.request import TrainRequest, train_stage
from gossamer.runs.training.stage import Trained, run_training
from gossamer.training.distributed.mesh_sizes import picture, split_batch
from gossamer.training.distributed.placement.mesh import MeshSettings, ProcessMesh
from gossamer.training.distributed.processes.session import (
    Timeouts,
    joined,
    restarts,
    world_of_environment,
)
from gossamer.training.run_files.folder import RunFolder
from gossamer.training.run_files.metrics import read_metrics

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class TrainCommand:
    """One command line, read."""

    recipe: Recipe
    target: Path
    data: str | None
    evaluation: str | None
    model: str | None
    resume: bool
    allow_change: bool
    tensorboard: bool

    def request(self, out: Output) -> TrainRequest:
        """What the recipe's side needs to know; a user's module is imported here."""
        given = None if self.model is None else load_function(self.model, out.note)
        return TrainRequest(
            recipe=self.recipe,
            data=self.data,
            evaluation=self.evaluation,
            given=given,
            given_name=self.model or "",
            resume=self.resume,
            allow_change=self.allow_change,
            tensorboard=self.tensorboard,
        )


@dataclass(frozen=True)
class TrainOutcome:
    """What to show."""

    trained: Trained
    report: Report
    document: dict[str, Any]
    remarks: list[str]

    def table(self) -> "Table":
        """Quality, bytes and what the compaction saved."""
        loop, report = self.trained.loop, self.report
        shown = table("", ">dense", ">trained")
        for name, value in loop.quality.items():
            shown.add_row(name, "not measured", f"{value:.4f}")
        shown.add_row("sparsity of pruned layers", "0", f"{report.sparsity:.4f}")
        shown.add_row(
            "bytes of tensors", format_bytes(report.bytes_dense), format_bytes(report.bytes_sparse)
        )
        compaction = self.document["training"]["compaction"]
        if compaction is not None:
            before, after = (compaction[f"bytes_{when}"] for when in ("before", "after"))
            shown.add_row("bytes of training state", format_bytes(before), format_bytes(after))
        effect = self.document["step_ms"]
        if effect is not None and effect[0] is not None:
            shown.add_row("ms of a step", f"{effect[0]:.2f}", f"{effect[1]:.2f}")
        return shown


def run_command(command: TrainCommand, out: Output) -> TrainOutcome | None:
    """Everything `gossamer train` does; None on a rank that does not lead."""
    mesh = train_stage(command.recipe).mesh
    if world_of_environment() is None and (mesh is None or mesh.sizes.num_ranks == 1):
        return _run_here(command, out, None)
    mesh = mesh or Mesh()
    timeouts = Timeouts(mesh.start_timeout, mesh.timeout, mesh.heartbeat)
    with ends_for_good(), joined(mesh.sizes, timeouts) as session:
        train = train_stage(command.recipe)
        settings = MeshSettings(
            wire=mesh.wire,
            microbatches=mesh.num_microbatches(train.batch),
            schedule=mesh.schedule,
            seed=train.seed,
        )
        if session.is_lead:
            split = split_batch(mesh.sizes, train.batch, settings.microbatches)
            out.note(picture(mesh.sizes, split))
        else:
            out.quiet = True
        # What torchrun started again goes on where the last checkpoint was taken.
        command = replace(command, resume=command.resume or restarts() > 0)
        return _run_here(command, out, ProcessMesh(session, settings))


def _run_here(command: TrainCommand, out: Output, grid: ProcessMesh | None) -> TrainOutcome | None:
    is_lead = grid is None or grid.is_lead
    if is_lead:
        check_destination(command.target)
    request = command.request(out)
    folder = RunFolder(command.target)
    with told_how_to_resume(), ExitStack() as stack:
        if is_lead:
            stack.enter_context(folder.opened(resume=command.resume))
        trained = _train(request, folder, out, grid)
        if not is_lead:
            return None
        with out.stage("saving"):
            return _save(trained, command, folder)


def plan_training(command: TrainCommand, out: Output) -> TrainingPlan:
    """Read the data, build the model, time one step; write nothing."""
    check_destination(command.target)
    with out.stage("reading data, building the model, timing a step"):
        request = command.request(out)
        return plan_run(request, str(command.target))


def plan_table(plan: TrainingPlan) -> "Table":
    """The plan for people."""
    shown = table("", ">estimate")
    shown.add_row("steps", f"{plan.steps:,}")
    shown.add_row("batches in an epoch", f"{plan.batches_per_epoch:,}")
    shown.add_row("parameters", f"{plan.parameters:,}")
    shown.add_row("of them in pruned layers", f"{plan.pruned:,}")
    for kind, count in plan.bytes_by_kind.items():
        shown.add_row(f"{kind}, once masks are final", format_bytes(count))
    shown.add_row("training state, dense", format_bytes(plan.bytes_dense))
    shown.add_row("one checkpoint, before compaction", format_bytes(plan.checkpoint_bytes))
    shown.add_row("time at the dense step's speed", f"{plan.seconds:.0f} s")
    return shown


def _train(
    request: TrainRequest, folder: RunFolder, out: Output, grid: ProcessMesh | None
) -> Trained:
    with ExitStack() as stack:
        stages: list[Stage] = []

        def progress(step: int, steps: int) -> None:
            # Begun here: the length may follow from the data, and a resumed run has fewer steps.
            if not stages:
                stages.append(stack.enter_context(out.stage("training", steps - step + 1)))
            stages[0].advance()

        return run_training(request, folder, say=out.note, progress=progress, grid=grid)


def _save(trained: Trained, command: TrainCommand, folder: RunFolder) -> TrainOutcome:
    report = training_report(trained)
    records = read_metrics(folder.metrics)
    content = report_content(trained, report, command.recipe, records)
    save(
        trained.loop.model.eval(),
        command.target,
        report=content,
        card=training_card(trained, report, command.recipe, folder.target.name),
        beside=dict(trained.task.beside),
    )
    page = write_page(trained, report, records, folder.report)
    effect = [r for r in records if r["kind"] == "compaction-effect"]
    times = (effect[-1]["ms_before"], effect[-1]["ms_after"]) if effect else None
    document = {
        **content,
        "out": str(command.target),
        "run": str(folder.path),
        "report": str(page),
        "step_ms": times,
    }
    remarks = [f"Saved to {command.target}. Curves: {page}"]
    return TrainOutcome(trained, report, document, remarks)

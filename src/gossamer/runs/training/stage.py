# SPDX-License-Identifier: Apache-2.0
"""One `train` stage carried out: task, model, optimizer, schedule, loop, checkpoints, resume.

A checkpoint is only taken up by the run that wrote it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gossamer.data.tasks import Task, tensors_digest
from gossamer.errors import RecipeError
from gossamer.ops.kernels import active_kernels
from gossamer.recipes.digest import content_differences, recipe_content
from gossamer.recipes.stages import Train
from gossamer.recipes.stages.schedules import IterativeSettings, step_of
from gossamer.runs.kept_run import metrics_bytes
from gossamer.runs.schedules import attach, check_after, one_training
from gossamer.runs.training.models import build_optimizer
from gossamer.runs.training.request import TrainRequest, make_task, model_of
from gossamer.runs.voice import Say
from gossamer.training.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from gossamer.training.checkpoint.random_state import seed_all, undisturbed_random
from gossamer.training.checkpoint.restoring import late_tables
from gossamer.training.distributed import AXES, MeshSizes
from gossamer.training.distributed.placement import ProcessMesh
from gossamer.training.distributed.processes import check_alike, check_masks, shared_checkpoint
from gossamer.training.experts import follow_experts, with_routing
from gossamer.training.growth import Growth, GrowthStep
from gossamer.training.loop import Control, LearningRate, Loop, LoopSettings, Progress, Surroundings
from gossamer.training.loop.endings import memory_for
from gossamer.training.optim import LAMB, LARS
from gossamer.training.run_files import MetricsFile, RunFolder, Sink, TensorBoard

_SAME_IN_LOOP = {"accumulate", "clip", "precision", "recompute", "log_every"}
_SMALLER = "Use a smaller model or batch, or recompute: true; 'gossamer train --dry-run' says more."
# What makes it another run.
_DECISIVE = ("recipe", "data", "model", "tokenizer")
_MAX_SHOWN = 300


@dataclass(frozen=True)
class Trained:
    """A run that was prepared, or is done.

    Attributes:
        loop: holds model, optimizer and counters.
        task: what it was trained on.
        dense_bytes: parameters and buffers of the model before anything was pruned.
        resumed: whether it continued from a checkpoint.
        quality: what was measured at the end, by name.
    """

    loop: Loop
    task: Task
    dense_bytes: int
    resumed: bool
    quality: Mapping[str, float] = field(default_factory=dict)


def loop_settings(train: Train, task: Task) -> LoopSettings:
    """The recipe in the loop's words."""
    steps = train.num_steps(len(task.batches))
    # Rewinding repeats one training, and its learning rate, again and again.
    length = steps
    if isinstance(train.schedule, IterativeSettings):
        length = one_training(train.schedule, steps)[0]
    warmup = min(step_of(train.rate.warmup, length), length)
    return LoopSettings(
        steps=steps,
        rate=LearningRate(train.rate.shape, length, warmup, train.rate.floor, train.rate.decay),
        **train.model_dump(include=_SAME_IN_LOOP),
        **_keeping(train, task),
        split_masters=train.optimizer.master != "fp32",
        # Of one process: modes are measured on them.
        tokens=max(1, task.tokens // (1 if train.mesh is None else train.mesh.sizes.num_parts)),
        grow=growth_steps(train, steps),
        step_tokens=task.tokens * train.accumulate,
        evaluate_every=train.evaluation.every,
        checkpoint_every=train.checkpoint.every,
        on_full_disk=train.checkpoint.on_full_disk,
    )


def _keeping(train: Train, task: Task) -> dict[str, Any]:
    """Which state the run ends with."""
    if train.evaluation.keep is None:
        return {"compaction": train.compaction}
    if task.evaluate is None:
        raise RecipeError(
            "stages[0].train.evaluation.keep: best needs data to measure on; hold some out."
        )
    # The best state may be from before compaction, which has another form.
    return {"compaction": "off", "keep_best": "eval_loss"}


def run_training(
    request: TrainRequest,
    folder: RunFolder,
    *,
    say: Say,
    progress: Progress | None = None,
    grid: ProcessMesh | None = None,
) -> Trained:
    """Train in a folder that is held open; the model at the end, whole on the leading rank.

    Args:
        request: what to do.
        folder: `RunFolder.opened` is around this call, on the leading rank.
        say: gets notices for people.
        progress: called after every step.
        grid: the processes, if there are several; all of them call this.
    """
    train = request.train
    store = CheckpointStore(folder.checkpoints, train.checkpoint.keep)
    checkpoint = None
    if grid is None or grid.is_lead:
        store.remove_leftovers()
        # Tables that ranks share may be larger than memory.
        is_shared = grid is not None and _shares_tables(train)
        checkpoint = store.newest(say, mapped=is_shared) if request.resume else None
    if grid is not None:
        checkpoint = shared_checkpoint(grid.session, checkpoint, folder.path)
    if request.resume and checkpoint is None:
        say("There is no checkpoint yet: starting from the beginning.")
    # A user's function builds a model in there.
    seed_all(train.seed)
    with memory_for("reading the data", "Give less of it, or close other programs."):
        task = make_task(request, folder.path / "data", _saved_tokenizer(checkpoint))
    for note in task.notes:
        say(note)
    run = _run_identity(request, task)
    if grid is not None:
        # Not the kernels: hosts of a cluster may have different CPUs.
        alike = {name: run[name] for name in _DECISIVE}
        check_alike({**alike, "version of torch": str(torch.__version__)}, grid.session.patient)
    if checkpoint is not None:
        run = _check_identity(run, checkpoint, request.allow_change, say)
    with memory_for("building the model", _SMALLER):
        prepared = prepare(request, task, run, folder, store, checkpoint, progress, grid)
    loop = prepared.loop
    if grid is not None and checkpoint is None:
        check_masks(loop.model, "at the start", grid.session.patient)
        weights, late = loop.model.state_dict().items(), late_tables(loop.model)
        digests = {
            f"initial value of {name}": repr(late[name][1]) if name in late else tensors_digest(one)
            for name, one in weights
        }
        check_alike(digests, grid.session.patient)
    try:
        if checkpoint is not None:
            loop.restore(checkpoint, keep_settings=request.allow_change)
            say(f"Going on after step {loop.step} of {loop.settings.steps}.")
        elif grid is None or grid.is_lead:
            # Two checkpoints stay while a third is written.
            folder.check_space(3 * 4 * prepared.dense_bytes)
        with memory_for(f"training after step {loop.step}", _SMALLER):
            loop.train()
        if grid is None or grid.is_lead:
            prepared = replace(prepared, quality=_final_quality(loop, task))
    finally:
        loop.close()
    return prepared


def _final_quality(loop: Loop, task: Task) -> dict[str, float]:
    """What the last evaluation measured, or the state that was kept, and what is reported of it."""
    if loop.best is None and task.report is None:
        return dict(loop.quality)
    found = dict(loop.quality)
    loop.model.eval()
    with undisturbed_random(), torch.no_grad():
        if loop.best is not None and task.evaluate is not None:
            found = {name: float(value) for name, value in task.evaluate(loop.model).items()}
        if task.report is not None:
            reported = {name: float(value) for name, value in task.report(loop.model).items()}
            found |= reported
            for sink in loop.around.sinks:
                sink.write({"kind": "report", "step": loop.step, **reported})
    return found


def prepare(
    request: TrainRequest,
    task: Task,
    run: Mapping[str, Any],
    folder: RunFolder,
    store: CheckpointStore,
    checkpoint: Checkpoint | None,
    progress: Progress | None,
    grid: ProcessMesh | None,
) -> Trained:
    """Everything a run needs, seeded, before its first step."""
    train = request.train
    settings = loop_settings(train, task)
    # Again: a user's function may draw what it likes.
    seed_all(train.seed)
    is_cut = grid is not None and _shares_tables(train)
    # Masks and growth change whole models before they are cut.
    is_cut = is_cut and train.schedule is None and not settings.grow
    model = model_of(train, task, is_cut=is_cut)
    num_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    optimizer = build_optimizer(train.optimizer, model, train.compaction)
    follow_experts(model, optimizer)
    schedule: Any = train.schedule

    def begin(net: torch.nn.Module, holder: torch.optim.Optimizer, done: int) -> Control:
        made = attach(
            net,
            schedule,
            holder,
            total_steps=settings.steps,
            data=[task.batches[0]],
            loss=lambda net, batch: only_loss(task.loss(net, batch)),
        )
        made.begin_after(done)
        return made

    control: Any = None
    if schedule is not None and settings.grow:
        check_after(schedule, settings.steps, settings.grow[-1].at or 0)
        control = begin
    elif schedule is not None:
        control = begin(model, optimizer, 0)
        if isinstance(optimizer, LAMB | LARS):
            optimizer.follow_masks(model)
    is_lead = grid is None or grid.is_lead
    sinks: list[Sink] = []
    if is_lead:
        sinks.append(MetricsFile(folder.metrics, metrics_bytes(checkpoint)))
    if is_lead and request.tensorboard:
        sinks.append(TensorBoard(folder.path / "tensorboard"))
    around = Surroundings(
        evaluate=task.evaluate,
        writer=CheckpointWriter(store, asynchronous=train.checkpoint.asynchronous),
        run=run,
        sinks=tuple(sinks),
        progress=progress,
        example=task.example,
    )
    loop = Loop(
        model,
        optimizer,
        with_routing(task.loss),
        task.batches,
        settings,
        control=control,
        around=around,
        processes=grid,
    )
    return Trained(loop, task, num_bytes, checkpoint is not None)


def _shares_tables(train: Train) -> bool:
    """Whether ranks hold some rows of each table."""
    return train.mesh is not None and train.mesh.tables.shard != "none"


def growth_steps(train: Train, steps: int) -> tuple[GrowthStep, ...]:
    """The growths of the recipe, with moments as steps."""
    return tuple(
        GrowthStep(
            Growth.of(**wanted.model_dump(exclude={"at", "slope", "rewarm", "rho", "lr_factor"})),
            at=None if wanted.at is None else step_of(wanted.at, steps),
            slope=wanted.slope,
            rewarm=step_of(wanted.rewarm, steps),
            rho=wanted.rho,
            lr_factor=wanted.lr_factor,
        )
        for wanted in train.grow
    )


def only_loss(result: Any) -> torch.Tensor:
    """The loss of what a task's loss gives: itself, or the first of several."""
    loss: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return loss


def _run_identity(request: TrainRequest, task: Task) -> dict[str, Any]:
    """Everything that decides the result to the last bit."""
    recipe = recipe_content(request.recipe)
    # A run may go on with another grid: it decides last bits only, like a machine.
    found = recipe["stages"][0]["train"].pop("mesh", None)
    mesh = {} if found is None else {"mesh": str(MeshSizes(**{axis: found[axis] for axis in AXES}))}
    return {
        "recipe": recipe,
        "data": task.digest,
        "model": request.given_name,
        "tokenizer": {name: _as_text(raw) for name, raw in task.beside.items()},
        "machine": {
            "torch": str(torch.__version__),
            "kernels": active_kernels(),
            "threads": torch.get_num_threads(),
            **mesh,
        },
        "changes": [],
    }


def _as_text(raw: bytes) -> str:
    """A text file as it is, arrays by their digest."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def _check_identity(
    run: dict[str, Any], checkpoint: Checkpoint, allow_change: bool, say: Say
) -> dict[str, Any]:
    """`run` with the changes so far; InputError if it is another run than the checkpoint's."""
    old = checkpoint.run
    before, now = ({name: held.get(name) for name in _DECISIVE} for held in (old, run))
    texts = map(str, content_differences(before, now))
    changed = [t if len(t) <= _MAX_SHOWN else f"{t[:_MAX_SHOWN]} ..." for t in texts]
    if changed and not allow_change:
        raise RecipeError(
            f"{checkpoint.path.parent.parent}: its checkpoint belongs to another run:\n  "
            + "\n  ".join(changed)
            + "\nResume with the recipe and data of that run, add --allow-recipe-change to go on"
            " with the new ones, or delete the folder."
        )
    if changed:
        say("Going on although this changed: " + "; ".join(changed))
    if old.get("machine") != run["machine"]:
        say(
            f"The run began with {old.get('machine')} and goes on with {run['machine']}: results"
            " may differ in the last bits."
        )
    earlier = old.get("changes")
    changes = [*earlier] if isinstance(earlier, list) else []
    if changed:
        changes.append({"step": checkpoint.step, "changed": changed})
    return {**run, "changes": changes}


def _saved_tokenizer(checkpoint: Checkpoint | None) -> bytes | None:
    """The tokenizer.json that a run learned from its text, so that it is not learned anew."""
    saved = None if checkpoint is None else checkpoint.run.get("tokenizer")
    text = saved.get("tokenizer.json") if isinstance(saved, dict) else None
    return text.encode("utf-8") if isinstance(text, str) else None

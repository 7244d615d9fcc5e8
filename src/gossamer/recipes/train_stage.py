# SPDX-License-Identifier: Apache-2.0
"""One `train` stage carried out: task, model, optimizer, schedule, loop, checkpoints, resume."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, RecipeError
from gossamer.ops.kernels import active_kernels
from gossamer.recipes.attach import attach
from gossamer.recipes.digest import content_differences, recipe_content
from gossamer.recipes.schedule_builders import one_training
from gossamer.recipes.schedule_schema import Iterative
from gossamer.recipes.schema import Recipe
from gossamer.recipes.train_models import build_model, context_of
from gossamer.recipes.train_optimizer import build_optimizer
from gossamer.recipes.train_schema import Train, warmup_steps
from gossamer.train.checkpoint import Checkpoint, CheckpointStore
from gossamer.train.checkpoint_async import CheckpointWriter
from gossamer.train.control import Control
from gossamer.train.learning_rate import LearningRate
from gossamer.train.loop import Loop, Progress, Surroundings
from gossamer.train.loop_settings import LoopSettings
from gossamer.train.loop_state import read_counters
from gossamer.train.metrics import MetricsFile, Sink, TensorBoard
from gossamer.train.optim import LAMB, LARS
from gossamer.train.out_of_memory import memory_for
from gossamer.train.random_state import seed_all
from gossamer.train.run_folder import RunFolder
from gossamer.train.tasks import Task, image_task, labelled_task, text_task
from gossamer.zoo import MLP

Say = Callable[[str], None]
_MAX_SHOWN = 300
_SMALLER = "Use a smaller model or batch, or recompute: true; 'gossamer train --dry-run' says more."
# A user's function of --model: a module for the recipe's task, or a whole task.
Given = Callable[[], nn.Module | Task]


@dataclass(frozen=True)
class TrainRequest:
    """What the command line gives beside the recipe.

    Attributes:
        recipe: has one stage, `train`.
        data: a file, a folder or `zoo:NAME`; None where the user's function brings its own.
        evaluation: a file to measure on; None measures on what is held out.
        given: makes the model or the whole task; None builds what the recipe names.
        given_name: what --model says, kept in checkpoints.
        resume: go on with the run that lies there.
        allow_change: resume although recipe or data changed.
        tensorboard: also write event files.
    """

    recipe: Recipe
    data: str | None
    evaluation: str | None = None
    given: Given | None = None
    given_name: str = ""
    resume: bool = False
    allow_change: bool = False
    tensorboard: bool = False

    @property
    def train(self) -> Train:
        """The one stage."""
        return train_stage(self.recipe)


@dataclass(frozen=True)
class Trained:
    """A run that was prepared, or is done.

    Attributes:
        loop: holds model, optimizer and counters.
        task: what it was trained on.
        dense_bytes: parameters and buffers of the model before anything was pruned.
    """

    loop: Loop
    task: Task
    dense_bytes: int


def train_stage(recipe: Recipe) -> Train:
    """The `train` stage of a recipe that has nothing else."""
    found = [stage.train for stage in recipe.stages if stage.train is not None]
    if len(recipe.stages) != 1 or not found:
        kinds = ", ".join(type(stage.step).__name__.lower() for stage in recipe.stages)
        raise RecipeError(
            f"recipe: 'gossamer train' carries out one stage, train; this recipe has {kinds}. Prune"
            " with 'gossamer prune', then train its artifact: --model FOLDER."
        )
    return found[0]


def make_task(request: TrainRequest, saved_tokenizer: bytes | None = None) -> Task:
    """The data of a request, read and checked, with the model if a function gives one."""
    train = request.train
    made = None if request.given is None else request.given()
    if isinstance(made, Task):
        return made
    if request.data is None:
        raise InputError(
            f"task {train.task}: needs data. Give a file: --data FILE, or --data zoo:{train.task}"
            " for generated ones."
        )
    if train.task == "images":
        flat = train.model.name == "mlp" if made is None else isinstance(made, MLP)
        task = image_task(request.data, train.batch, train.seed, flat=flat)
    else:
        make = text_task if train.task == "text" else labelled_task
        task = make(
            request.data,
            train.batch,
            train.seed,
            context=context_of(train.model),
            tokens=train.data.tokens,
            vocabulary=train.data.vocabulary,
            holdout=train.data.holdout,
            evaluation=request.evaluation,
            saved_tokenizer=saved_tokenizer,
        )
    return task if made is None else _with_model(task, made)


def loop_settings(train: Train, task: Task) -> LoopSettings:
    """The recipe in the loop's words."""
    steps = train.num_steps(len(task.batches))
    # Rewinding repeats one training, and its learning rate, again and again.
    length = steps
    if isinstance(train.schedule, Iterative):
        length = one_training(train.schedule, steps)[0]
    return LoopSettings(
        steps=steps,
        rate=LearningRate(train.rate.shape, length, warmup_steps(train, length), train.rate.floor),
        accumulate=train.accumulate,
        clip=train.clip,
        precision=train.precision,
        recompute=train.recompute,
        compaction=train.compaction,
        split_masters=train.optimizer.master != "fp32",
        tokens=task.tokens,
        log_every=train.log_every,
        evaluate_every=train.evaluation.every,
        checkpoint_every=train.checkpoint.every,
        on_full_disk=train.checkpoint.on_full_disk,
    )


def run_training(
    request: TrainRequest, folder: RunFolder, *, say: Say, progress: Progress | None = None
) -> Trained:
    """Train in a folder that is held open; the model at the end.

    Args:
        request: what to do.
        folder: `RunFolder.opened` is around this call.
        say: gets notices for people.
        progress: called after every step.
    """
    train = request.train
    store = CheckpointStore(folder.checkpoints, train.checkpoint.keep)
    store.remove_leftovers()
    checkpoint = store.newest(say) if request.resume else None
    if request.resume and checkpoint is None:
        say("There is no checkpoint yet: starting from the beginning.")
    # A user's function builds a model in there.
    seed_all(train.seed)
    with memory_for("reading the data", "Give less of it, or close other programs."):
        task = make_task(request, _saved_tokenizer(checkpoint))
    run = _identity(request, task)
    if checkpoint is not None:
        run = _checked(run, checkpoint, request.allow_change, say)
    with memory_for("building the model", _SMALLER):
        prepared = prepare(request, task, run, folder, store, checkpoint, progress)
    loop = prepared.loop
    try:
        if checkpoint is not None:
            loop.restore(checkpoint, keep_settings=request.allow_change)
            say(f"Going on after step {loop.step} of {loop.settings.steps}.")
        else:
            # Two checkpoints stay while a third is written.
            folder.check_space(3 * 4 * prepared.dense_bytes)
        with memory_for(f"training after step {loop.step}", _SMALLER):
            loop.train()
    finally:
        loop.close()
    return prepared


def prepare(
    request: TrainRequest,
    task: Task,
    run: Mapping[str, Any],
    folder: RunFolder,
    store: CheckpointStore,
    checkpoint: Checkpoint | None,
    progress: Progress | None,
) -> Trained:
    """Everything a run needs, seeded, before its first step."""
    train = request.train
    settings = loop_settings(train, task)
    # Again: a user's function may draw what it likes.
    seed_all(train.seed)
    model = build_model(train.model, task.sizes) if task.model is None else task.model
    num_bytes = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    optimizer = build_optimizer(train.optimizer, model)
    control = attach_schedule(train, task, model, optimizer, settings.steps)
    sinks: list[Sink] = [MetricsFile(folder.metrics, _metrics_bytes(checkpoint))]
    if request.tensorboard:
        sinks.append(TensorBoard(folder.path / "tensorboard"))
    around = Surroundings(
        evaluate=task.evaluate,
        writer=CheckpointWriter(store, asynchronous=train.checkpoint.asynchronous),
        run=run,
        sinks=tuple(sinks),
        progress=progress,
        example=task.example,
    )
    loop = Loop(model, optimizer, task.loss, task.batches, settings, control=control, around=around)
    return Trained(loop, task, num_bytes)


def attach_schedule(
    train: Train, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
) -> Control | None:
    """The schedule at work; None if the recipe has none."""
    if train.schedule is None:
        return None
    control: Control = attach(
        model,
        train.schedule,
        optimizer,
        total_steps=steps,
        data=[task.batches[0]],
        loss=lambda net, batch: _only_loss(task.loss(net, batch)),
    )
    if isinstance(optimizer, LAMB | LARS):
        optimizer.follow_masks(model)
    return control


def _only_loss(result: Any) -> torch.Tensor:
    loss: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return loss


def _with_model(task: Task, model: Any) -> Task:
    if not isinstance(model, nn.Module):
        raise InputError(
            f"--model: the function must return a torch module or a gossamer.train.tasks.Task, got"
            f" {type(model).__name__}."
        )
    return replace(task, model=model)


def _identity(request: TrainRequest, task: Task) -> dict[str, Any]:
    """Everything that decides the result to the last bit."""
    return {
        "recipe": recipe_content(request.recipe),
        "data": task.digest,
        "model": request.given_name,
        "tokenizer": {name: raw.decode("utf-8") for name, raw in task.beside.items()},
        "machine": {
            "torch": str(torch.__version__),
            "kernels": active_kernels(),
            "threads": torch.get_num_threads(),
        },
        "changes": [],
    }


def _checked(
    run: dict[str, Any], checkpoint: Checkpoint, allow_change: bool, say: Say
) -> dict[str, Any]:
    """`run` with the changes so far; InputError if it is another run than the checkpoint's."""
    old = checkpoint.run
    names = ("recipe", "data", "model", "tokenizer")
    changed = [
        _shortened(str(difference))
        for difference in content_differences(
            {name: old.get(name) for name in names}, {name: run[name] for name in names}
        )
    ]
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
    before = old.get("changes")
    earlier = before if isinstance(before, list) else []
    mine = [{"step": checkpoint.step, "changed": changed}] if changed else []
    return {**run, "changes": [*earlier, *mine]}


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."


def _saved_tokenizer(checkpoint: Checkpoint | None) -> bytes | None:
    saved = {} if checkpoint is None else checkpoint.run.get("tokenizer") or {}
    text = saved.get("tokenizer.json") if isinstance(saved, dict) else None
    return text.encode("utf-8") if isinstance(text, str) else None


def _metrics_bytes(checkpoint: Checkpoint | None) -> int:
    return 0 if checkpoint is None else int(read_counters(checkpoint.state)["metrics_bytes"])

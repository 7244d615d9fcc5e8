# SPDX-License-Identifier: Apache-2.0
"""What a run is, so that a checkpoint is only taken up by the run that wrote it."""

from typing import Any

import torch

from gossamer.data.tasks import Task
from gossamer.errors import RecipeError
from gossamer.ops.kernels import active_kernels
from gossamer.recipes import content_differences, recipe_content
from gossamer.runs.training.request import TrainRequest
from gossamer.runs.voice import Say
from gossamer.training.checkpoint import Checkpoint
from gossamer.training.distributed import AXES, MeshSizes

_MAX_SHOWN = 300


def run_identity(request: TrainRequest, task: Task) -> dict[str, Any]:
    """Everything that decides the result to the last bit."""
    recipe, mesh = _without_mesh(recipe_content(request.recipe))
    return {
        "recipe": recipe,
        "data": task.digest,
        "model": request.given_name,
        "tokenizer": {name: raw.decode("utf-8") for name, raw in task.beside.items()},
        "machine": {
            "torch": str(torch.__version__),
            "kernels": active_kernels(),
            "threads": torch.get_num_threads(),
            **({} if mesh is None else {"mesh": mesh}),
        },
        "changes": [],
    }


def _without_mesh(recipe: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """A run may go on with another grid: it decides last bits only, like a machine."""
    mesh = None
    for stage in recipe["stages"]:
        train = stage.get("train")
        found = None if train is None else train.pop("mesh", None)
        if found is not None:
            mesh = str(MeshSizes(**{axis: found[axis] for axis in AXES}))
    return recipe, mesh


def check_identity(
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


def saved_tokenizer(checkpoint: Checkpoint | None) -> bytes | None:
    """The tokenizer.json that a run learned from its text, so that it is not learned anew."""
    saved = {} if checkpoint is None else checkpoint.run.get("tokenizer") or {}
    text = saved.get("tokenizer.json") if isinstance(saved, dict) else None
    return text.encode("utf-8") if isinstance(text, str) else None

# SPDX-License-Identifier: Apache-2.0
"""What a run is, so that a checkpoint is only taken up by the run that wrote it."""

from typing import Any

import torch

from gossamer.data.tasks import Task
from gossamer.errors import RecipeError
from gossamer.ops import active_kernels
from gossamer.recipes import content_differences, recipe_content
from gossamer.runs.training.request import TrainRequest
from gossamer.runs.voice import Say
from gossamer.training.checkpoint import Checkpoint
from gossamer.training.distributed import AXES, MeshSizes

# What makes it another run.
DECISIVE = ("recipe", "data", "model", "tokenizer")
_MAX_SHOWN = 300


def run_identity(request: TrainRequest, task: Task) -> dict[str, Any]:
    """Everything that decides the result to the last bit."""
    recipe = recipe_content(request.recipe)
    # A run may go on with another grid: it decides last bits only, like a machine.
    found = recipe["stages"][0]["train"].pop("mesh", None)
    mesh = {} if found is None else {"mesh": str(MeshSizes(**{axis: found[axis] for axis in AXES}))}
    return {
        "recipe": recipe,
        "data": task.digest,
        "model": request.given_name,
        "tokenizer": {name: raw.decode("utf-8") for name, raw in task.beside.items()},
        "machine": {
            "torch": str(torch.__version__),
            "kernels": active_kernels(),
            "threads": torch.get_num_threads(),
            **mesh,
        },
        "changes": [],
    }


def check_identity(
    run: dict[str, Any], checkpoint: Checkpoint, allow_change: bool, say: Say
) -> dict[str, Any]:
    """`run` with the changes so far; InputError if it is another run than the checkpoint's."""
    old = checkpoint.run
    before, now = ({name: held.get(name) for name in DECISIVE} for held in (old, run))
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


def saved_tokenizer(checkpoint: Checkpoint | None) -> bytes | None:
    """The tokenizer.json that a run learned from its text, so that it is not learned anew."""
    saved = None if checkpoint is None else checkpoint.run.get("tokenizer")
    text = saved.get("tokenizer.json") if isinstance(saved, dict) else None
    return text.encode("utf-8") if isinstance(text, str) else None

# SPDX-License-Identifier: Apache-2.0
"""Which settings of `train` go together: rules that look at more than one field.

They work on the raw mapping of a file, so that they are told beside the faults of single fields.
"""

from collections.abc import Mapping
from typing import Any, Final

from gossamer.errors import InputError
from gossamer.recipes.faults import show
from gossamer.recipes.stages.base import Found
from gossamer.training.distributed import AXES, MeshSizes, split_batch

# Task -> models that fit it; the first one is the default.
_TASK_MODELS: Final[dict[str, tuple[str, ...]]] = {
    "images": ("mlp", "cnn"),
    "text": ("gpt",),
    "labelled": ("encoder",),
}
# Setting -> the models that have it.
_MODEL_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "heads": ("gpt", "encoder"),
    "context": ("gpt", "encoder"),
    "activation": ("mlp",),
    "tied": ("gpt",),
}
# Setting -> the optimizers that have it.
_OPTIMIZER_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "betas": ("adamw", "lamb"),
    "momentum": ("sgd", "lars"),
    "nesterov": ("sgd",),
}
# Section -> its moments that are steps of the run.
_MOMENTS = {"schedule": ("at", "begin", "end", "last_dense"), "rate": ("warmup",)}


def train_faults(train: Mapping[str, Any]) -> Found:
    """(dotted field, message) of everything that does not go together."""
    yield from _length_faults(train)
    yield from _model_faults(train)
    yield from _optimizer_faults(train)
    yield from _moment_faults(train)
    yield from _mesh_faults(train)


def _length_faults(train: Mapping[str, Any]) -> Found:
    given = [name for name in ("steps", "epochs") if train.get(name) is not None]
    if not given:
        yield "steps", "is missing; say how long to train with steps, or with epochs."
    elif len(given) == 2:
        yield "epochs", "steps is given too; say how long to train with one of them."


def _model_faults(train: Mapping[str, Any]) -> Found:
    task, model = train.get("task"), train.get("model")
    if not isinstance(model, Mapping):
        return
    name = model.get("name")
    fitting = _TASK_MODELS.get(task) if isinstance(task, str) else None
    known = {known for names in _TASK_MODELS.values() for known in names}
    if fitting is not None and name in known and name not in fitting:
        yield "model.name", f"{name} does not fit task {task}; expected {' or '.join(fitting)}."
    yield from _settings_faults("model", model, name, known, _MODEL_SETTINGS)
    width, heads = model.get("width", 128), model.get("heads")
    if type(width) is int and type(heads) is int and heads > 0 and width % heads:
        yield "model.heads", f"{heads} heads do not divide width {width}."


def _optimizer_faults(train: Mapping[str, Any]) -> Found:
    settings = train.get("optimizer")
    if not isinstance(settings, Mapping):
        return
    name = settings.get("name", "adamw")
    known = {"adamw", "sgd", "lamb", "lars"}
    yield from _settings_faults("optimizer", settings, name, known, _OPTIMIZER_SETTINGS)
    betas: Any = settings.get("betas")
    numbers = isinstance(betas, list | tuple) and all(isinstance(b, int | float) for b in betas)
    if numbers and not all(0 <= beta < 1 for beta in betas):
        yield "optimizer.betas", f"must be in [0, 1), got {list(betas)}."
    if settings.get("nesterov") is True and not settings.get("momentum"):
        yield "optimizer.nesterov", "needs a momentum."


def _settings_faults(
    section: str,
    given: Mapping[str, Any],
    name: Any,
    known: set[str],
    owners: Mapping[str, tuple[str, ...]],
) -> Found:
    """Settings that the chosen one does not have."""
    if name not in known:
        return
    for setting, having in owners.items():
        if given.get(setting) is not None and name not in having:
            yield f"{section}.{setting}", f"{name} has none; it belongs to {', '.join(having)}."


def _moment_faults(train: Mapping[str, Any]) -> Found:
    steps = train.get("steps")
    if type(steps) is not int:
        return
    for section, names in _MOMENTS.items():
        held: Any = train.get(section)
        for name in names if isinstance(held, Mapping) else ():
            moment = held.get(name)
            if type(moment) is int and moment > steps:
                yield (
                    f"{section}.{name}",
                    f"step {show(moment)} lies past the end of a run of {steps} steps.",
                )


def _mesh_faults(train: Mapping[str, Any]) -> Found:
    mesh = train.get("mesh")
    if not isinstance(mesh, Mapping):
        return
    given = {axis: mesh.get(axis, 1) for axis in AXES}
    if not all(type(size) is int and size > 0 for size in given.values()):
        return
    sizes = MeshSizes(**given)
    batch, micro = train.get("batch", 64), mesh.get("microbatches") or 1
    if type(batch) is int and type(micro) is int and batch > 0:
        try:
            split_batch(sizes, batch, micro)
        except InputError as error:
            field, _, text = str(error).partition(": ")
            yield field, text
    model = train.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    if type(layers) is int and sizes.pipeline > layers:
        yield "mesh.pipeline", f"{sizes.pipeline} stages are more than the model's {layers} layers."

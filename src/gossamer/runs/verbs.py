# SPDX-License-Identifier: Apache-2.0
"""`gossamer.prune` and `gossamer.train`: recipes carried out as the commands do it."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from gossamer.data.tasks import Task
from gossamer.errors import InputError
from gossamer.recipes import Recipe, load_recipe, make_recipe
from gossamer.report import Report
from gossamer.runs.pruning import PruneRequest, RecipeLike, chosen_recipe, run_prune
from gossamer.runs.sources import Source, origin_of
from gossamer.runs.stages import StageInput
from gossamer.runs.training import TrainRequest, TrainResult, run_train
from gossamer.runs.voice import Quiet, Say

PathLike = str | os.PathLike[str]
_Given = Callable[[], nn.Module | Task]
_DEFAULTS = {"pattern": "unstructured", "scorer": "magnitude", "budget": "uniform"}


def prune(  # noqa: PLR0913  (the public call: nearly every argument is an option of the command)
    model: nn.Module | Source | PathLike,
    recipe: RecipeLike | None = None,
    *,
    out: PathLike,
    data: PathLike | Iterable[Any] | None = None,
    evaluation: PathLike | None = None,
    teacher: nn.Module | PathLike | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
    sparsity: float | None = None,
    pattern: str = "unstructured",
    scorer: str = "magnitude",
    budget: str = "uniform",
    targets: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    format: Literal["packed", "dense"] = "packed",
    tokens: int = 128,
    timed: bool = True,
    given: StageInput | None = None,
    say: Say | None = None,
) -> Report:
    """Carry out a recipe on a model, save the artifact, and report what it gained and cost.

    The call does what the command `gossamer prune` does, and refuses what it refuses, in the same
    words. Use `gossamer.sparsify` to prune a model in place without files.

    Example:
        >>> report = gossamer.prune("my-llama", "sparsegpt-50", data="text.txt", out="pruned")
        >>> print(report)

    Args:
        model: an artifact, a local Hugging Face directory, a gguf or ONNX file; or a module, which
            is changed in place, also as a `gossamer.runs.Source` with the files beside it.
        recipe: a file, a built-in name, a mapping or a Recipe; None makes one stage of `sparsity`,
            `pattern`, `scorer`, `budget`, `targets` and `ignore`.
        out: where the artifact goes, with the report and a card.
        data: calibration data: a .txt, .jsonl, .csv, .tsv or .safetensors file, or batches as for
            `gossamer.sparsify`.
        evaluation: a file that the quality is measured on; otherwise the part of the file `data`
            that calibration does not use.
        teacher: the dense model, to recover a model that is pruned already.
        resume: go on with a run that was stopped.
        overrides: "name=value" in the recipe.
        sparsity: fraction of zeros in [0, 1); leave it out for patterns that fix it.
        pattern: which zeros are legal.
        scorer: the method that chooses them.
        budget: how the sparsity is shared among layers.
        targets: class names, globs or "re:..." to prune.
        ignore: class names, globs or "re:..." to leave alone.
        format: "packed" holds kept weights only, "dense" is ordinary safetensors with zeros.
        tokens: activation rows to time with where there is no data.
        timed: whether dense and pruned are timed. False saves the model alone, without report and
            card: for callers who measure the artifact themselves.
        given: what stages use besides the data, such as a loss, a teacher, a journal or a `tick`
            that may end the run: for callers who keep the run themselves.
        say: gets lines for people, such as `print`.
    """
    if given is not None and (resume or teacher is not None):
        raise InputError(
            "given: says itself which teacher the stages have and where the run is kept. Leave out"
            " teacher and resume."
        )
    flags: dict[str, Any] = {
        "sparsity": sparsity,
        "pattern": pattern,
        "scorer": scorer,
        "budget": budget,
        "targets": None if targets is None else [*targets],
        "ignore": None if ignore is None else [*ignore],
    }
    named = [name for name, value in flags.items() if value != _DEFAULTS.get(name)]
    flags["method"] = flags.pop("scorer")
    request = PruneRequest(
        origin=origin_of(model),
        target=Path(out),
        recipe=chosen_recipe(recipe, overrides, flags, named),
        data=Path(data) if isinstance(data, str | os.PathLike) else data,
        evaluation=None if evaluation is None else Path(evaluation),
        teacher=None if teacher is None else origin_of(teacher),
        resume=resume,
        form=format,
        tokens=tokens,
        timed=timed,
        given=given,
    )
    return run_prune(request, Quiet(say)).report


def train(  # noqa: PLR0913  (the public call: every argument is an option of the command)
    recipe: RecipeLike,
    data: PathLike | None = None,
    *,
    out: PathLike,
    model: nn.Module | PathLike | _Given | None = None,
    evaluation: PathLike | None = None,
    resume: bool = False,
    allow_change: bool = False,
    tensorboard: bool = False,
    overrides: Sequence[str] = (),
    say: Say | None = None,
) -> TrainResult | None:
    """Train as a recipe says and save the artifact.

    The call does what the command `gossamer train` does, and refuses what it refuses, in the same
    words. `out` gets the artifact at the end, `out`.run holds checkpoints, metrics and curves. A
    run that was stopped continues with `resume=True`, to the same bits. In a script that torchrun
    started, every process calls it; ranks that do not lead get None.

    Example:
        >>> result = gossamer.train("train-gradual", "zoo:images", out="trained")
        >>> print(result.quality, result.report)

    Args:
        recipe: a file, a built-in name, a mapping or a Recipe with one stage, train.
        data: a file, a folder or zoo:NAME; None where the model's function brings its own.
        out: where the artifact goes.
        model: an artifact or model folder, a module, which is trained in place, or a function that
            returns a module or a `gossamer.data.tasks.Task`; None builds what the recipe names.
        evaluation: a file to measure on; None measures on what is held out.
        resume: go on with the run that was stopped.
        allow_change: resume although the recipe or the data changed.
        tensorboard: also write TensorBoard event files.
        overrides: "name=value" in the recipe.
        say: gets lines for people, such as `print`.
    """
    if isinstance(recipe, str | os.PathLike):
        wanted = load_recipe(recipe, overrides)
    else:
        wanted = recipe if isinstance(recipe, Recipe) else make_recipe(recipe, "recipe")
    given: _Given | None = None
    name = ""
    if callable(model) and not isinstance(model, nn.Module):
        given, name = model, getattr(model, "__qualname__", type(model).__name__)
    elif model is not None:
        origin = origin_of(model)
        name = origin.text

        def load() -> nn.Module:
            origin.check()
            return origin.load(say or (lambda text: None)).model.train()

        given = load
    request = TrainRequest(
        recipe=wanted,
        data=None if data is None else os.fspath(data),
        evaluation=None if evaluation is None else os.fspath(evaluation),
        given=given,
        given_name=name,
        resume=resume,
        allow_change=allow_change,
        tensorboard=tensorboard,
    )
    return run_train(request, Path(out), Quiet(say))

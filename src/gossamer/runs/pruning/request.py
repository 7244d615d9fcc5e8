# SPDX-License-Identifier: Apache-2.0
"""What is asked of a pruning run, and what is read before the work begins.

Whatever can be wrong without a model is found first: the place of the artifact, recipe, files.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.data.files import Texts, check_scores, read_samples
from gossamer.errors import InputError, RecipeError
from gossamer.io.artifact.destination import check_destination
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, known_tokens, make_tokenizer
from gossamer.nn.batch import Batch
from gossamer.ops.kernels import active_kernels
from gossamer.pruning.calibration.flow import as_batches
from gossamer.pruning.calibration.journal import DiskJournal, data_digest, model_digest
from gossamer.pruning.gradients import Loss
from gossamer.recipes import Recipe, load_recipe, make_recipe, prune_recipe
from gossamer.recipes.digest import recipe_digest
from gossamer.recipes.faults import RecipeFaults
from gossamer.recipes.stages import Prune, Train
from gossamer.report import describe_machine
from gossamer.runs.calibration import Quality, calibration_batches, pair_loss, quality_of
from gossamer.runs.made_up_input import example_input
from gossamer.runs.sources import Origin, Source
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.recover_data import RecoverySamples, batch_tokens, samples_of_file

_DIGESTED_TOGETHER = 64
# Fields of a stage whose flag has another name.
_FLAGS = {"method": "scorer", "targets": "target"}
# What `data` holds, if it is a file; what the quality is measured on: `evaluation`, else `data`.
PruneFiles = tuple[Texts | None, Texts | None]
RecipeLike = Mapping[str, Any] | Recipe | str | os.PathLike[str]


@dataclass(frozen=True)
class PruneRequest:
    """What the user asked for.

    Attributes:
        origin: the model.
        target: where the artifact goes.
        recipe: what to do; it has no train stage.
        data: a file of calibration data, or batches.
        evaluation: a file that the quality is measured on; None measures on the part of `data`
            that calibration does not use.
        teacher: the dense model, for a model that is pruned already.
        resume: go on with the run that lies there.
        form: "packed" or "dense", as for `gossamer.save`.
        tokens: activation rows to time with where there is no data.
        how_to_resume: what to do after a run was stopped, for its last message.
        timed: whether dense and pruned are timed, explained and reported beside the artifact.
        given: what stages use besides the batches, of a caller who keeps the run himself; None
            makes it of the request.
    """

    origin: Origin
    target: Path
    recipe: Recipe
    data: Path | Iterable[Any] | None
    evaluation: Path | None
    teacher: Origin | None
    resume: bool
    form: str
    tokens: int
    how_to_resume: str = "the same call, with resume=True"
    timed: bool = True
    given: StageInput | None = None


@dataclass(frozen=True)
class PruneInput:
    """Inputs of the run.

    Attributes:
        batches: calibration data, or one made-up batch for timing; None if none could be made.
        loss: of labelled pairs; None: one that fits the model's outputs.
        quality: what is measured before and after.
        tokens: activation rows to compile for.
        timed: what the times are of.
        recovery: what stages that train use: all of the data.
    """

    batches: list[Batch] | None
    loss: Loss | None
    quality: Quality | None
    tokens: int
    timed: str
    recovery: RecoverySamples | None = None


def chosen_recipe(
    recipe: RecipeLike | None,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    given: Sequence[str],
) -> Recipe:
    """The recipe that is named, or one stage made of the flags.

    Args:
        recipe: a file, a built-in name, a mapping or a Recipe; None makes one of the flags.
        overrides: of the file.
        flags: settings of a prune stage.
        given: names of the flags that the user gave.
    """
    named = isinstance(recipe, str | os.PathLike)
    if recipe is not None and given:
        raise RecipeError(
            f"--{given[0].rstrip('s')}: is part of the recipe {recipe if named else 'given'}."
            " Change it there, or with --set."
        )
    if isinstance(recipe, str | os.PathLike):
        return load_recipe(recipe, overrides)
    if overrides:
        raise RecipeError("--set: changes a recipe; name one with --recipe, or use the flags.")
    if isinstance(recipe, Recipe):
        return recipe
    if recipe is not None:
        return make_recipe(recipe, "recipe")
    try:
        return prune_recipe(flags, "gossamer prune")
    except RecipeFaults as error:
        # The user gave flags, and never saw a recipe.
        fields = [(fault, fault.path.rpartition(".")[2]) for fault in error.faults]
        raise RecipeFaults(
            replace(fault, source=f"--{_FLAGS.get(field, field)}", path="")
            for fault, field in fields
        ) from error


def check_request(request: PruneRequest) -> PruneFiles:
    """Whatever can be wrong without a model, which may take minutes to load."""
    check_destination(request.target)
    recipe = request.recipe
    if recipe.steps_of(Train):
        raise RecipeError(
            "--recipe: has a train stage, which 'gossamer prune' does not carry out. Train with it:"
            f" gossamer train RECIPE --data DATA -o {request.target}."
        )
    if recipe.needs_data and request.data is None:
        raise RecipeError("recipe: needs calibration data. Give a text: --data FILE.")
    is_measured = request.evaluation is None
    samples = _read(request.data, "--data", measured=is_measured)
    evaluated = _read(request.evaluation, "--eval", measured=True)
    for origin in (request.origin, request.teacher):
        if origin is not None:
            origin.check()
    return samples, samples if is_measured else evaluated


def _read(path: Any, option: str, *, measured: bool) -> Texts | None:
    """The samples in a file; mistakes in it are told with the option that named it."""
    if not isinstance(path, Path):
        return None
    try:
        samples = read_samples(path)
        if measured:
            check_scores(samples)
    except InputError as error:
        raise InputError(f"{option} {error}") from error
    return samples


def prepare(source: Source, request: PruneRequest, files: PruneFiles) -> PruneInput:
    """The data of a request for the model of `source`."""
    settings, model = request.recipe.calibration, source.model
    (samples, measured), most, tokenizer, quality = files, known_tokens(model), None, None
    given = [part for part in files if part is not None]
    for part in given:
        if part.ids_NT is None or most is None:
            continue
        # Numbers that the model has no embedding for would end in an index error.
        low, high = int(part.ids_NT.min()), int(part.ids_NT.max())
        if not 0 <= low <= high < most:
            raise InputError(
                f"{part.path}: input_ids are {low} to {high}, but the model has tokens 0 to"
                f" {most - 1}. Encode the text with the tokenizer of this model."
            )
    if any(part.ids_NT is None for part in given):
        tokenizer = make_tokenizer(source.beside.get(TOKENIZER_FILE), most)
    if measured is not None:
        held_out = request.evaluation is None
        quality = quality_of(model, measured, tokenizer, settings, held_out=held_out)
    if samples is not None:
        batches = calibration_batches(model, samples, tokenizer, settings)
        loss = pair_loss if samples.pairs else None
        recovery = None
        if any(stage.step.needs_teacher for stage in request.recipe.stages):
            recovery = samples_of_file(model, samples, tokenizer, settings.tokens)
        first = batches[0].arguments
        ids = first["input_ids"] if isinstance(first, dict) else first
        timed = f"{ids.shape[0]} x {ids.shape[1]} tokens"
        return PruneInput(batches, loss, quality, ids.numel(), timed, recovery)
    if request.data is not None and not isinstance(request.data, Path):
        batches = as_batches(request.data, "the recipe")
        return PruneInput(batches, None, quality, batch_tokens(batches[0]), "the first batch")
    example = example_input(model, request.tokens) if request.timed else None
    if example is None:
        return PruneInput(None, None, quality, request.tokens, "no input could be made up")
    return PruneInput([Batch(example.batch)], None, quality, example.tokens, example.text)


def open_journal(source: Source, request: PruneRequest, prepared: PruneInput) -> DiskJournal | None:
    """Where solved layers are noted; None for recipes that are done in a moment."""
    recipe, target = request.recipe, request.target
    if not recipe.steps_of(Prune) or not recipe.needs_data or prepared.batches is None:
        return None
    folder = target.with_name(f"{target.name}.journal")
    if folder.exists() and not request.resume:
        raise InputError(
            f"{folder}: a run that was stopped lies there. Add --resume to go on with it, or delete"
            " the folder."
        )
    return DiskJournal(folder, run_key(source.model, recipe, prepared))


def run_key(model: nn.Module, recipe: Recipe, prepared: PruneInput) -> dict[str, str]:
    """Everything that decides the result to the last bit."""
    recovery = () if prepared.recovery is None else prepared.recovery.in_order(_DIGESTED_TOGETHER)
    return {
        "recipe": recipe_digest(recipe),
        "model": model_digest(model),
        "data": data_digest(itertools.chain(prepared.batches or (), recovery)),
        "gossamer": describe_machine()["gossamer"],
        "torch": torch.__version__,
        "kernels": active_kernels(),
        "threads": str(torch.get_num_threads()),
    }

# SPDX-License-Identifier: Apache-2.0
"""What `gossamer prune` reads before it works: calibration data, quality data, an old journal."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gossamer
from gossamer.cli.models.example_input import example_input
from gossamer.cli.models.sources import Source, check_source
from gossamer.data.files import Texts, check_scores, read_samples
from gossamer.errors import InputError, RecipeError
from gossamer.io.artifact.destination import check_destination
from gossamer.io.safe_files.tokenizer.guarded_tokenizer import (
    TOKENIZER_FILE,
    known_tokens,
    make_tokenizer,
)
from gossamer.nn.batch import Batch
from gossamer.ops.kernels import active_kernels
from gossamer.pruning.calibration.journal import DiskJournal, data_digest, model_digest
from gossamer.pruning.gradients.passes import Loss
from gossamer.pruning.targets import find_targets
from gossamer.recipes.digest import recipe_digest
from gossamer.recipes.schema import Recipe
from gossamer.recipes.stages.prune import Prune
from gossamer.runs.calibration import (
    Quality,
    calibration_batches,
    pair_loss,
    quality_of,
)
from gossamer.runs.stages.recover_data import RecoverySamples, samples_of_file

_DIGESTED_TOGETHER = 64


@dataclass(frozen=True)
class PruneRequest:
    """What the user typed."""

    model: str
    target: Path
    recipe: Recipe
    data: Path | None
    evaluation: Path | None
    resume: bool
    form: str
    tokens: int
    teacher: str | None = None


@dataclass(frozen=True)
class PruneFiles:
    """What the files of a request hold.

    Attributes:
        samples: of --data.
        measured: what the quality is measured on: of --eval, else of --data.
    """

    samples: Texts | None
    measured: Texts | None


@dataclass(frozen=True)
class Prepared:
    """Inputs of the run.

    Attributes:
        batches: calibration data, or one made-up batch for timing; None if none could be made.
        loss: of labelled pairs; None: one that fits the model's outputs.
        quality: what is measured before and after.
        tokens: activation rows to compile for.
        timed: what the times are of.
        recovery: what recover and tokens stages train on: all of the data.
    """

    batches: list[Batch] | None
    loss: Loss | None
    quality: Quality | None
    tokens: int
    timed: str
    recovery: RecoverySamples | None = None


def check_request(request: PruneRequest) -> PruneFiles:
    """Whatever can be wrong without a model: where it goes, what it is, what the files hold.

    All of it is found before a model is loaded, which may take minutes.
    """
    check_destination(request.target)
    _check_recipe(request)
    samples, evaluated = (
        None if path is None else _read(path, option)
        for path, option in ((request.data, "--data"), (request.evaluation, "--eval"))
    )
    files = PruneFiles(samples, evaluated or samples)
    if files.measured is not None:
        with _told_of("--data" if evaluated is None else "--eval"):
            check_scores(files.measured)
    check_source(request.model)
    if request.teacher is not None:
        check_source(request.teacher)
    return files


def _check_recipe(request: PruneRequest) -> None:
    recipe = request.recipe
    if any(stage.train is not None for stage in recipe.stages):
        raise RecipeError(
            "--recipe: has a train stage, which 'gossamer prune' does not carry out. Train with it:"
            f" gossamer train RECIPE --data DATA -o {request.target}."
        )
    if recipe.needs_data and request.data is None:
        raise RecipeError("recipe: needs calibration data. Give a text: --data FILE.")


def _read(path: Path, option: str) -> Texts:
    with _told_of(option):
        return read_samples(path)


@contextmanager
def _told_of(option: str) -> Iterator[None]:
    """Mistakes in a file are told with the option that named it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option} {error}") from error


def prepare(source: Source, request: PruneRequest, files: PruneFiles) -> Prepared:
    """The files of a request for the model of `source`."""
    settings = request.recipe.calibration
    samples, measured = files.samples, files.measured
    held_out = request.evaluation is None
    for part in (samples, measured):
        _check_ids(source, part)
    tokenizer = _tokenizer(source, [samples, measured])
    quality = None
    if measured is not None:
        quality = quality_of(source.model, measured, tokenizer, settings, held_out=held_out)
    if samples is not None:
        batches = calibration_batches(source.model, samples, tokenizer, settings)
        first = batches[0].arguments
        ids = first["input_ids"] if isinstance(first, dict) else first
        loss = pair_loss if samples.pairs else None
        recovery = None
        if any(stage.recover or stage.tokens for stage in request.recipe.stages):
            recovery = samples_of_file(source.model, samples, tokenizer, settings.tokens)
        timed = f"{ids.shape[0]} x {ids.shape[1]} tokens"
        return Prepared(batches, loss, quality, ids.numel(), timed, recovery)
    example = example_input(source.model, request.tokens)
    if example is None:
        return Prepared(None, None, quality, request.tokens, "no input could be made up")
    return Prepared([Batch(example.batch)], None, quality, example.tokens, example.text)


def open_journal(source: Source, request: PruneRequest, prepared: Prepared) -> DiskJournal | None:
    """Where solved layers are noted; None for recipes that are done in a moment."""
    has_layers = any(stage.prune is not None for stage in request.recipe.stages)
    if not has_layers or not request.recipe.needs_data or prepared.batches is None:
        return None
    target = Path(request.target)
    folder = target.with_name(f"{target.name}.journal")
    if folder.exists() and not request.resume:
        raise InputError(
            f"{folder}: a run that was stopped lies there. Add --resume to go on with it, or delete"
            " the folder."
        )
    return DiskJournal(folder, run_key(source.model, request.recipe, prepared))


def run_key(model: nn.Module, recipe: Recipe, prepared: Prepared) -> dict[str, str]:
    """Everything that decides the result to the last bit."""
    recovery = () if prepared.recovery is None else prepared.recovery.in_order(_DIGESTED_TOGETHER)
    return {
        "recipe": recipe_digest(recipe),
        "model": model_digest(model),
        "data": data_digest(itertools.chain(prepared.batches or (), recovery)),
        "gossamer": gossamer.__version__,
        "torch": torch.__version__,
        "kernels": active_kernels(),
        "threads": str(torch.get_num_threads()),
    }


def count_targets(model: nn.Module, recipe: Recipe) -> int:
    """Layers that all prune stages together visit, for the progress bar."""
    total = 0
    for stage in recipe.stages:
        step = stage.step
        if isinstance(step, Prune):
            rules = [None if r is None else list(r) for r in (step.targets, step.ignore)]
            total += len(find_targets(model, *rules))
    return total


def _tokenizer(source: Source, texts: Sequence[Texts | None]) -> Any:
    if all(text is None or text.ids_NT is not None for text in texts):
        return None
    return make_tokenizer(source.beside.get(TOKENIZER_FILE), known_tokens(source.model))


def _check_ids(source: Source, samples: Texts | None) -> None:
    """Numbers that the model has no embedding for would end in an index error."""
    most = known_tokens(source.model)
    if samples is None or samples.ids_NT is None or most is None:
        return
    low, high = int(samples.ids_NT.min()), int(samples.ids_NT.max())
    if not 0 <= low <= high < most:
        raise InputError(
            f"{samples.path}: input_ids are {low} to {high}, but the model has tokens 0 to"
            f" {most - 1}. Encode the text with the tokenizer of this model."
        )

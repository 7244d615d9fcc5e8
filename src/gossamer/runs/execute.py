# SPDX-License-Identifier: Apache-2.0
"""A recipe carried out: dense is evaluated first, every stage is verified, a Report comes out."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from gossamer.errors import MaskDrift, RecipeError
from gossamer.nn import CompactWeight, MaskedWeight
from gossamer.pruning import LayerResult
from gossamer.pruning.calibration.batches import as_batches
from gossamer.recipes.schema import Recipe, Structured
from gossamer.recipes.stages.recover import Recover
from gossamer.recipes.stages.relufy import Relufy
from gossamer.recipes.stages.round import Round
from gossamer.recipes.stages.tokens import Tokens
from gossamer.recipes.stages.train import Train
from gossamer.report.report import Report
from gossamer.runs.reporting import Evaluate, dense_bytes, make_report, measure_quality
from gossamer.runs.stages.prune import StageInput, run_prune_stage
from gossamer.runs.stages.recover import run_recover_stage
from gossamer.runs.stages.relufy import run_relufy_stage
from gossamer.runs.stages.round import run_round_stage
from gossamer.runs.stages.structured import run_structured_stage
from gossamer.runs.stages.tokens import run_tokens_stage
from gossamer.runs.times import time_beside_dense, tokens_seen, with_times


def execute(
    recipe: Recipe,
    model: nn.Module,
    data: Iterable[Any] | None = None,
    *,
    evaluate: Evaluate | None = None,
    given: StageInput | None = None,
    timed: bool = True,
) -> Report:
    """Carry out all stages of `recipe` on `model`, in place.

    Args:
        recipe: what to do.
        model: any module; a failed prune stage leaves it as the stage before left it.
        data: calibration batches; the first one also times the model.
        evaluate: called before the first and after the last stage; its number is the quality. Where
            recovery is kept, also in its checks, for the curve.
        given: loss, journal and progress of the run.
        timed: whether the report has times, where there is data.
    """
    batches = None if data is None else as_batches(data, "the recipe")
    given = replace(given or StageInput(), batches=batches)
    quality_dense = measure_quality(evaluate, model, "before")
    # Slimming changes the shapes: what it is compared with must be kept.
    is_slim = any(stage.structured is not None for stage in recipe.stages)
    dense = copy.deepcopy(model) if is_slim else None
    teacher = _teacher(recipe, model, given)
    before = dense_bytes(model)
    pruned: dict[str, LayerResult] = {}
    notes: list[str] = []
    for number, stage in enumerate(recipe.stages):
        step = stage.step
        if isinstance(step, Train):
            raise RecipeError(
                f"stages[{number}].train: a training run has its own data, checkpoints and folder."
                " Carry it out with 'gossamer train'."
            )
        if isinstance(step, Structured):
            notes += run_structured_stage(model, step, given).notes
            continue
        if isinstance(step, Tokens):
            notes += run_tokens_stage(model, step, given, _needed(teacher))
        elif isinstance(step, Relufy):
            notes += run_relufy_stage(model, step, given)
        elif isinstance(step, Round):
            notes += run_round_stage(model, step)
        elif isinstance(step, Recover):
            kept = None if given.kept is None else given.kept.of_stage(number)
            # A curve costs an evaluation per check: only where it is kept.
            watch = None if kept is None else evaluate
            of_stage = replace(given, kept=kept)
            notes += run_recover_stage(model, step, of_stage, _needed(teacher), watch=watch).notes
        else:
            journal = given.journal.of_stage(number)
            result = run_prune_stage(model, step, replace(given, journal=journal))
            notes += result.notes
            pruned |= {layer.name: layer for layer in result.layers}
        # Of all stages so far: a later one must respect the masks it did not make.
        verify(model, pruned.values())
    quality = measure_quality(evaluate, model, "after")
    report = make_report(model, list(pruned.values()), notes, quality_dense, quality)
    report = replace(report, bytes_dense=before)
    if batches is None or not timed:
        return report
    # Of pruned layers; a slim model has none, and all of its Linears matter.
    layers = [m for name, m in model.named_modules() if name in pruned or (is_slim and not pruned)]
    tokens = tokens_seen(model, layers, batches[0].arguments)
    if not tokens:
        return report
    times = time_beside_dense(model, tokens, batches[0].arguments, dense)
    return with_times(report, times)


def _needed(teacher: nn.Module | None) -> nn.Module:
    if teacher is None:
        raise RecipeError("there is no dense model to learn from.")
    return teacher


def _teacher(recipe: Recipe, model: nn.Module, given: StageInput) -> nn.Module | None:
    """The dense model for recover and tokens stages; None if there are none."""
    if all(stage.recover is None and stage.tokens is None for stage in recipe.stages):
        return None
    if given.teacher is not None:
        return given.teacher
    if any(isinstance(module, MaskedWeight | CompactWeight) for module in model.modules()):
        raise RecipeError(
            "the model is pruned already, so it cannot be its own teacher. Give the dense"
            " model: --teacher MODEL, or StageInput(teacher=...)."
        )
    return copy.deepcopy(model)


def verify(model: nn.Module, layers: Iterable[LayerResult]) -> None:
    """Raise unless every layer is masked as reported: count, pattern, exact zeros, digest."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for layer in layers:
        module = modules.get(layer.name)
        if not isinstance(module, MaskedWeight):
            raise MaskDrift(f"{layer.name}: was pruned but is a {type(module).__name__}.")
        mask_RK = module.mask()
        layer.pattern.validate(mask_RK, f"{layer.name}, after pruning")
        outside = int((module.weight_parameter().detach().flatten(1)[~mask_RK] != 0).sum())
        if int(mask_RK.sum()) != layer.nnz or outside:
            raise MaskDrift(
                f"{layer.name}: keeps {int(mask_RK.sum())} weights and has {outside} outside its"
                f" mask; the stage kept {layer.nnz}."
            )
        if module.mask_digest() != layer.mask_digest:
            raise MaskDrift(f"{layer.name}: its stored mask is not the one the stage made.")

# SPDX-License-Identifier: Apache-2.0
"""A recipe carried out: dense is evaluated first, every stage is verified, a Report comes out.

Its times are those of the pruned model beside the dense one, on a batch of the user's own data.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import MaskDrift, RecipeError
from gossamer.nn.batch import Batch
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.ops.timing import Duel, duel
from gossamer.pruning import LayerResult
from gossamer.pruning.calibration.flow import as_batches, evaluating, hooked
from gossamer.recipes import Recipe
from gossamer.report import Report
from gossamer.running.choice import Call, Choice, Chooser, Contenders, Rival
from gossamer.running.layers import compile as compile_model
from gossamer.runs.reporting import Evaluate, dense_bytes, make_report, measure_quality
from gossamer.runs.stages import STAGES, StageInput, StageOutcome

OnCompiled = Callable[[nn.Module], None]
_TIMED_SECONDS = 1.0


def execute(
    recipe: Recipe,
    model: nn.Module,
    data: Iterable[Any] | None = None,
    *,
    evaluate: Evaluate | None = None,
    given: StageInput | None = None,
    timed: bool = True,
    on_compiled: OnCompiled = lambda fast: None,
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
        on_compiled: gets the compiled model that was timed.
    """
    batches = None if data is None else as_batches(data, "the recipe")
    given = replace(given or StageInput(), batches=batches, watch=evaluate)
    steps = [stage.step for stage in recipe.stages]
    if given.teacher is None and any(step.needs_teacher for step in steps):
        if any(sparse_layers(model)):
            raise RecipeError(
                "the model is pruned already, so it cannot be its own teacher. Give the dense"
                " model: --teacher MODEL, or StageInput(teacher=...)."
            )
        given = replace(given, teacher=copy.deepcopy(model))
    stages: list[Callable[[], StageOutcome]] = []
    for number, step in enumerate(steps):
        run = STAGES.get(type(step))
        if run is None:
            raise RecipeError(
                f"stages[{number}].train: a training run has its own data, checkpoints and folder."
                " Carry it out with 'gossamer train'."
            )
        stages.append(functools.partial(run, model, step, given.of_stage(number)))
    # What is taken out changes the shapes: what the model is compared with must be kept.
    dense = copy.deepcopy(model) if any(step.changes_shapes for step in steps) else None
    timed_with = batches[0].arguments if batches is not None and timed else None
    return carry_out(model, stages, evaluate, timed_with, dense, on_compiled)


def carry_out(
    model: nn.Module,
    stages: Iterable[Callable[[], StageOutcome]],
    evaluate: Evaluate | None,
    timed: Any,
    dense: nn.Module | None = None,
    on_compiled: OnCompiled = lambda fast: None,
) -> Report:
    """Evaluate the model, change it stage by stage, verify, evaluate, time and report.

    Args:
        model: changed in place.
        stages: what is done to it.
        evaluate: gives the quality.
        timed: the batch that dense and pruned are timed with; None measures no times.
        dense: the model as it was, where its shapes change.
        on_compiled: gets the compiled model that was timed.
    """
    quality_dense = measure_quality(evaluate, model, "before")
    before = dense_bytes(model)
    pruned: dict[str, LayerResult] = {}
    notes: list[str] = []
    for run in stages:
        outcome = run()
        notes += outcome.notes
        pruned |= {layer.name: layer for layer in outcome.layers}
        if not outcome.changed_shapes:
            # Of all stages so far: a later one must respect the masks it did not make.
            verify(model, pruned.values())
    quality = measure_quality(evaluate, model, "after")
    results = list(pruned.values())
    report = make_report(model, results, dense_bytes(model), notes, quality_dense, quality)
    report = replace(report, bytes_dense=before)
    if timed is None:
        return report
    # Of pruned layers; a slim model has none, and all of its Linears matter.
    every = dense is not None and not pruned
    layers = [module for name, module in model.named_modules() if name in pruned or every]
    tokens = tokens_seen(model, layers, timed)
    if not tokens:
        return report
    times, fast = time_beside_dense(model, tokens, timed, dense)
    on_compiled(fast)
    ms_dense, ms_sparse = (us / 1000 for us in times.us)
    return replace(report, ms_dense=ms_dense, ms_sparse=ms_sparse, doubt=times.doubt)


def verify(model: nn.Module, layers: Iterable[LayerResult]) -> None:
    """Raise unless every layer is masked as reported: count, pattern, exact zeros, digest."""
    masked = dict(sparse_layers(model, "masked"))
    for layer in layers:
        module = masked.get(layer.name)
        if module is None:
            found = type(dict(model.named_modules()).get(layer.name)).__name__
            raise MaskDrift(f"{layer.name}: was pruned but is a {found}.")
        mask_RK = module.mask()
        layer.pattern.validate(mask_RK, f"{layer.name}, after pruning")
        kept = int(mask_RK.sum())
        outside = int((module.weight_parameter().detach().flatten(1)[~mask_RK] != 0).sum())
        if kept != layer.nnz or outside:
            raise MaskDrift(
                f"{layer.name}: keeps {kept} weights and has {outside} outside its mask; the stage"
                f" kept {layer.nnz}."
            )
        if module.mask_digest() != layer.mask_digest:
            raise MaskDrift(f"{layer.name}: its stored mask is not the one the stage made.")


class _AlwaysDense(Chooser):
    """Makes `compile` give the stock dense twin: same code path, same zeros, no sparse kernel."""

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        return Choice(tokens, "dense", "dense twin")

    def choose_among(self, sparse: Sequence[Rival], dense: Call) -> Choice:
        return Choice(sparse[0].key.tokens, "dense", "dense twin")


def tokens_seen(model: nn.Module, layers: Iterable[nn.Module], batch: Any) -> tuple[int, ...]:
    """How many activation rows enter the Linears of `layers` while the model reads one batch."""
    counts: set[int] = set()

    def count(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and args[0].numel():
            counts.add(args[0].numel() // args[0].shape[-1])

    handles = [
        layer.register_forward_pre_hook(count) for layer in layers if isinstance(layer, nn.Linear)
    ]
    with hooked(handles), evaluating(model), torch.no_grad():
        Batch(batch).run(model)
    return tuple(sorted(counts))


def time_beside_dense(
    model: nn.Module, tokens: tuple[int, ...], batch: Any, dense: nn.Module | None = None
) -> tuple[Duel, nn.Module]:
    """One forward, dense against compiled, interleaved; and the compiled model.

    `dense` is the model before its shapes changed; without it the model's own dense twin runs.
    """
    if dense is None:
        dense = compile_model(model, tokens, chooser=_AlwaysDense())
    fast = compile_model(model, tokens)
    calls = [Batch(batch).call(net) for net in (dense, fast)]
    with torch.inference_mode():
        return duel(*calls, budget_seconds=_TIMED_SECONDS), fast

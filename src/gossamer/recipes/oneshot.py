# SPDX-License-Identifier: Apache-2.0
"""`gossamer.sparsify`: prune in one shot and say what it gained and cost."""

import difflib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, RecipeError
from gossamer.formats import FORMATS, choose_format
from gossamer.nn import CompactWeight, MaskedWeight
from gossamer.patterns import Pattern
from gossamer.prune import LayerResult, Scorer, apply_plan, attention_notes, plan_oneshot
from gossamer.prune.rules import Rules
from gossamer.recipes.beside_dense import time_beside_dense, tokens_seen
from gossamer.recipes.oneshot_stage import oneshot_settings
from gossamer.recipes.schema import Recipe
from gossamer.report.report import LayerRow, Report

_DEFAULTS: dict[str, Any] = {
    "sparsity": None,
    "pattern": "unstructured",
    "scorer": "magnitude",
    "budget": "uniform",
    "targets": None,
    "ignore": None,
}

_CONV_NOTE = "its kernel depends on the image size: gossamer.compile(model, example=x)"

Evaluate = Callable[[nn.Module], float]


def sparsify(  # noqa: PLR0913  (the public call: every argument is a word of the vocabulary)
    model: nn.Module,
    recipe: Mapping[str, Any] | Recipe | str | os.PathLike[str] | None = None,
    *,
    sparsity: float | None = None,
    pattern: str | Pattern = "unstructured",
    scorer: str | Scorer = "magnitude",
    budget: str = "uniform",
    targets: Rules = None,
    ignore: Rules = None,
    data: Iterable[Any] | None = None,
    evaluate: Evaluate | None = None,
) -> Report:
    """Prune `model` in one shot, in place, and report bytes, time and quality beside dense.

    Layers become masked: they train on with their mask held, and `to_dense()` gives ordinary
    layers with exact zeros. Per layer exactly round((1 - sparsity) * numel) weights are kept
    (unstructured, uniform). An error leaves the model as it was.

    Example:
        >>> report = gossamer.sparsify(model, sparsity=0.9)
        >>> print(report)

    Args:
        model: any module. Default targets: every Linear and Conv2d, except one tied to an embedding
            or whose last path component is lm_head, head or classifier.
        recipe: used instead of these arguments: a mapping with keys sparsity, pattern, scorer,
            budget, targets, ignore; or a recipe with one prune stage (magnitude, random or a
            registered scorer): a file, a built-in name, or a Recipe.
        sparsity: fraction of zeros in [0, 1); leave it out for patterns that fix it.
        pattern: "unstructured", "2:4", "64:2:8", "nmg:2:4:16", "block:4x4".
        scorer: what says which weights matter, "magnitude" or "random".
        budget: "uniform", "global" or "erk".
        targets: class names, globs or "re:..." that replace the default targets.
        ignore: rules that are taken away from them.
        data: batches: a tensor, a tuple of arguments or a mapping of keyword arguments each. The
            first one times the dense against the compiled pruned model; scorers that look at
            activations read them all.
        evaluate: called with the model before and after; its number is the quality.
    """
    settings = _settings(
        recipe,
        {
            "sparsity": sparsity,
            "pattern": pattern,
            "scorer": scorer,
            "budget": budget,
            "targets": targets,
            "ignore": ignore,
        },
    )
    batches = None if data is None else iter(data)
    first = [] if batches is None else list(itertools.islice(batches, 1))
    plan = plan_oneshot(
        model, **settings, data=None if batches is None else itertools.chain(first, batches)
    )
    notes = attention_notes(model, plan.targets)
    tokens = tokens_seen(model, plan.targets, first[0]) if first else ()
    quality_dense = _quality(evaluate, model, "before")
    results = apply_plan(model, plan)
    report = _report(model, results, notes, quality_dense, _quality(evaluate, model, "after"))
    if not tokens:
        return report
    times = time_beside_dense(model, tokens, first[0])
    return replace(report, ms_dense=times.first_us / 1000, ms_sparse=times.second_us / 1000)


def _settings(
    recipe: Mapping[str, Any] | Recipe | str | os.PathLike[str] | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments with the recipe's keys filled in; a key given twice is refused."""
    if recipe is None:
        return arguments
    if isinstance(recipe, Recipe | str | os.PathLike):
        recipe = oneshot_settings(recipe)
    if not isinstance(recipe, Mapping):
        raise RecipeError(
            f"recipe: expected a mapping with keys {', '.join(_DEFAULTS)}, a file, a built-in name"
            f" or a Recipe; got {type(recipe).__name__}."
        )
    for key, value in recipe.items():
        if key not in _DEFAULTS:
            near = difflib.get_close_matches(str(key), _DEFAULTS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise RecipeError(f"recipe: unknown key {key!r}.{hint} Known: {', '.join(_DEFAULTS)}.")
        if arguments[key] != _DEFAULTS[key] and arguments[key] != value:
            raise RecipeError(
                f"recipe: {key} is {value!r} in the recipe and {arguments[key]!r} in the call."
                " Give it once."
            )
    return arguments | dict(recipe)


def _quality(evaluate: Evaluate | None, model: nn.Module, when: str) -> float | None:
    if evaluate is None:
        return None
    value = evaluate(model)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"evaluate: must return one number, got {type(value).__name__} {when} pruning."
        ) from error


def _report(
    model: nn.Module,
    results: list[LayerResult],
    notes: list[str],
    quality_dense: float | None,
    quality_sparse: float | None,
) -> Report:
    rows = [_row(result) for result in results]
    num_pruned = sum(result.numel - result.nnz for result in results)
    num_weights = sum(result.numel for result in results)
    num_parameters = sum(param.numel() for param in model.parameters())
    bytes_dense = _dense_bytes(model)
    saved = sum(row.bytes_dense - row.bytes_sparse for row in rows)
    return Report(
        sparsity=num_pruned / num_weights if num_weights else 0.0,
        global_sparsity=num_pruned / num_parameters if num_parameters else 0.0,
        bytes_dense=bytes_dense,
        bytes_sparse=bytes_dense - saved,
        quality_dense=quality_dense,
        quality_sparse=quality_sparse,
        layers=rows,
        notes=notes,
    )


def _row(result: LayerResult) -> LayerRow:
    shape, pattern = result.matrix_shape, result.pattern
    name = choose_format(shape, result.nnz, result.itemsize, pattern)
    notes = [_CONV_NOTE] if result.kind == "Conv2d" else []
    if result.nnz == 0:
        notes.append("no weight is kept")
    if result.tied:
        notes.append(f"shares its weight with {', '.join(result.tied)}")
    return LayerRow(
        name=result.name,
        kind=result.kind,
        shape=result.shape,
        pattern=str(pattern),
        sparsity=1.0 - result.nnz / result.numel if result.numel else 0.0,
        nnz=result.nnz,
        bytes_dense=result.numel * result.itemsize,
        bytes_sparse=FORMATS.get(name).nbytes(shape, result.nnz, result.itemsize, pattern),
        format=name,
        note="; ".join(notes),
    )


def _dense_bytes(model: nn.Module) -> int:
    """Bytes a dense checkpoint holds: distinct parameters and saved buffers, masks left out."""
    sparse = [m for m in model.modules() if isinstance(m, MaskedWeight | CompactWeight)]
    masks = {id(module.mask_bits) for module in sparse}
    held = {id(value): value for value in model.state_dict(keep_vars=True).values()}
    return sum(
        tensor.numel() * tensor.element_size()
        for key, tensor in held.items()
        if key not in masks and isinstance(tensor, torch.Tensor)
    )

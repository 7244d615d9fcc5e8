# SPDX-License-Identifier: Apache-2.0
"""The loss of a user's task in `gossamer.sparsify`: which methods use one, and on what data.

With a loss, a batch that is a pair is (input, target). The loss gets it as it is; statistics and
timing call the model with the input alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, RecipeError
from gossamer.nn.batch import Batch
from gossamer.pruning.calibration.batches import as_batches
from gossamer.method_table import methods_that_need
from gossamer.pruning.calibration.batches import Batch, as_batches
from gossamer.pruning.gradients.passes import Loss
from gossamer.recipes.schema import Recipe
from gossamer.recipes.stages.prune import Prune
from gossamer.recipes.stages.recover import Recover
from gossamer.recipes.stages.structured import Structured

# loss(model, batch) -> a tensor with one number; the batch is an item of `data`.
TaskLoss = Callable[[nn.Module, Any], torch.Tensor]


def _check_used(recipe: Recipe) -> None:
    """Refuse a loss that no stage would look at."""
    by_gradients = any(step.needs == "gradients" for step in recipe.steps_of(Prune))
    if by_gradients or any(isinstance(s.step, Structured | Recover) for s in recipe.stages):
        return
    raise RecipeError(
        "loss: no stage of the recipe uses a loss. Leave it out, or use a method that looks at"
        f" gradients: {', '.join(methods_that_need('gradients'))}."
    )


def refuse_loss(scorer: Any) -> InputError:
    """For a scorer that looks at no gradient."""
    name = scorer if isinstance(scorer, str) else type(scorer).__name__
    return InputError(
        f"loss: scorer {name!r} uses no loss. Leave it out, or use one that looks at gradients:"
        " scorer='taylor', 'fisher' or 'obert'."
    )


def labelled_batches(data: Iterable[Any] | None) -> list[Batch]:
    """Batches beside a loss; a pair is (input, target)."""
    return [_labelled(batch) for batch in as_batches(data, "a loss of your own")]


def _labelled(batch: Batch) -> Batch:
    pair = batch.arguments
    if batch.labels is not None or not isinstance(pair, list | tuple) or len(pair) != 2:
        return batch
    return replace(as_batches([pair[0]], "a loss of your own")[0], labels=pair[1])


def as_loss(loss: TaskLoss, recipe: Recipe) -> Loss:
    """The user's loss, called with batches as the user gave them; refused where nobody calls it."""
    if not callable(loss):
        raise InputError(f"loss: expected loss(model, batch), got {type(loss).__name__}.")
    _check_used(recipe)
    return lambda model, batch: loss(model, _as_given(batch))


def _as_given(batch: Batch) -> Any:
    return batch.arguments if batch.labels is None else (batch.arguments, batch.labels)

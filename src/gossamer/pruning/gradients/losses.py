# SPDX-License-Identifier: Apache-2.0
"""Losses for gradient methods, where the user gives none.

A second-order method wants the curvature of the loss at the given weights, and takes it from
gradients: F = mean of g g^T. For that the gradients must not vanish, and their outer product must
be the curvature of something.

* Next-token cross entropy has both, on text the model was not fitted to perfectly.
* The distance to the dense model's outputs has a curvature but no gradient: the dense model is its
  minimum. It is of no use here.
* Cross entropy against labels drawn from the model's own output distribution is the replacement for
  models with logits and no labels: its expected g g^T is the Fisher matrix, which is the curvature
  of the divergence from the dense model's distribution.
* <r, output> with random r is the replacement for embeddings: its expected g g^T is J^T J, the
  Gauss-Newton matrix, which is the curvature of the squared distance to the dense model's outputs.

Legend: B samples, T positions, V classes.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.errors import InputError
from gossamer.nn.batch import Batch, first_tensor, named_tensor, rows_of
from gossamer.pruning.gradients.passes import Loss

__all__ = [
    "default_loss",
    "next_token_loss",
    "output_of",
]


def next_token_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross entropy of every token given those before it; padding neither asks nor answers."""
    ids_BT = batch.first_tensor()
    logits_BTV = output_of(batch.run(model))
    if ids_BT is None or ids_BT.ndim != 2 or logits_BTV.shape[:-1] != ids_BT.shape:
        found = None if ids_BT is None else list(ids_BT.shape)
        raise InputError(
            "next_token_loss: expected token numbers [B, T] and logits [B, T, V], got"
            f" {found} and {list(logits_BTV.shape)}. Give a loss of your own with loss=..."
        )
    guesses, answers = logits_BTV[:, :-1], ids_BT[:, 1:]
    if batch.keep is not None:
        both = batch.keep[:, :-1] & batch.keep[:, 1:]
        guesses, answers = guesses[both], answers[both]
    if not answers.numel():
        raise InputError("next_token_loss: a batch holds no two tokens in a row.")
    return cross_entropy(guesses.flatten(0, -2).float(), answers.flatten())


@dataclass(frozen=True)
class SampledLabels:
    """Cross entropy against labels drawn from the model's own output distribution.

    Attributes:
        seed: of the draw. The same batch gets the same labels in every pass.
    """

    seed: int = 0

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean over the rows of the logits that are not padding."""
        logits_TV = _rows(model, batch).float()
        with torch.no_grad():
            chances_TV = logits_TV.softmax(dim=-1).cpu()
            labels_T = torch.multinomial(chances_TV, 1, generator=_generator(self.seed, batch))
        return cross_entropy(logits_TV, labels_T[:, 0].to(logits_TV.device))


@dataclass(frozen=True)
class RandomProbe:
    """<r, output> with standard normal r, over the root of the number of rows.

    Attributes:
        seed: of r. The same batch gets the same r in every pass.
    """

    seed: int = 0

    def __call__(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """One random direction in the space of all outputs that are not padding."""
        rows_TV = _rows(model, batch)
        probe_TV = torch.randn(rows_TV.shape, generator=_generator(self.seed, batch)).to(rows_TV)
        return (rows_TV * probe_TV).sum() / math.sqrt(max(1, len(rows_TV)))


def default_loss(model: nn.Module, batch: Batch, seed: int = 0) -> Loss:
    """The loss that fits the outputs of `model` (in eval mode) on `batch`.

    Next-token cross entropy for causal language models, sampled labels for other outputs called
    logits, a random probe for everything else: a bare tensor may be logits or an embedding, and
    the probe is right for both.
    """
    with torch.no_grad():
        outputs = batch.run(model)
        if _is_causal_language_model(model, batch, output_of(outputs)):
            return next_token_loss
    return RandomProbe(seed) if named_tensor(outputs, "logits") is None else SampledLabels(seed)


def output_of(outputs: Any) -> torch.Tensor:
    """The tensor that matters: logits, else the last hidden state, else the first one."""
    for name in ("logits", "last_hidden_state"):
        found = named_tensor(outputs, name)
        if found is not None:
            return found
    found = first_tensor(outputs)
    if found is None or not found.is_floating_point() or not found.ndim:
        raise InputError(
            f"loss: the model's output ({type(outputs).__name__}) has no logits, no"
            " last_hidden_state and no floating point tensor. Give a loss of your own with loss=..."
        )
    return found


def _rows(model: nn.Module, batch: Batch) -> torch.Tensor:
    """[T, V]: the outputs that are not padding."""
    return rows_of(output_of(batch.run(model)), batch.keep)


def _is_causal_language_model(model: nn.Module, batch: Batch, logits: torch.Tensor) -> bool:
    """Whether logits [B, T, V] over token numbers [B, T] do not look at what comes after."""
    ids_BT = batch.first_tensor()
    if ids_BT is None or ids_BT.is_floating_point() or ids_BT.ndim != 2 or ids_BT.shape[1] < 2:
        return False
    if logits.shape[:-1] != ids_BT.shape:
        return False
    if not 2 <= int(ids_BT.max()) + 1 <= logits.shape[-1]:
        return False
    # Another last token: a causal model says the same about the tokens before it.
    keep_BT = torch.ones_like(ids_BT, dtype=torch.bool) if batch.keep is None else batch.keep
    place_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
    last_B1 = torch.where(keep_BT, place_BT, 0).amax(dim=1, keepdim=True)
    changed_BT = torch.where(place_BT == last_B1, torch.where(ids_BT == 0, 1, 0), ids_BT)
    again = output_of(Batch(_with_ids(batch.arguments, ids_BT, changed_BT)).run(model))
    earlier_BT = keep_BT & (place_BT < last_B1)
    said, before = again[earlier_BT].float(), logits[earlier_BT].float()
    return bool(earlier_BT.any()) and torch.allclose(said, before, rtol=1e-4, atol=1e-4)


def _with_ids(arguments: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    if isinstance(arguments, torch.Tensor):
        return new
    if isinstance(arguments, Mapping):
        return {name: new if value is old else value for name, value in arguments.items()}
    return [new if value is old else value for value in arguments]


def _generator(seed: int, batch: Batch) -> torch.Generator:
    """Depends on the batch's content alone: passes over the same batch must agree."""
    found = batch.first_tensor()
    digest = 0
    if found is not None:
        held = found.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest = zlib.crc32(held.numpy().tobytes())
    return torch.Generator().manual_seed(seed * 0x9E3779B1 + digest)

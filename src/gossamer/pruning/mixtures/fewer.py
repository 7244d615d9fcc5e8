# SPDX-License-Identifier: Apache-2.0
"""Fewer experts: those that give least are dropped, or merged into those that stay.

What an expert gives is the mean, over the tokens that it sees, of its router weight times the norm
of its output (REAP, arXiv 2510.13999): the router could not make up for a rare expert that gives
much. Merged experts are means, weighted by the tokens that they saw; a dropped one goes to the kept
one whose outputs look most alike on tokens that both see in this measurement. Neurons are not
matched, so that merging is for experts with a common origin, such as upcycled ones.

Legend: T tokens, S pairs of token and expert, E experts, D width.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.batch import Batch
from gossamer.nn.moe import adopt_experts
from gossamer.nn.surgery import unchanged_on_error
from gossamer.nn.surgery.mixtures import MixtureLayer, mix_experts, mixtures_of
from gossamer.ops.experts import Routes
from gossamer.pruning.calibration.flow import evaluating, hooked

How = Literal["drop", "merge"]
# Tokens that all experts compute when outputs are compared.
_COMPARED = 256


@dataclass(frozen=True)
class FewerSettings:
    """How many experts stay, and what becomes of the others.

    Attributes:
        keep: part of the experts of every mixture, at least one and as many as a token has.
        how: "drop" or "merge".
    """

    keep: float = 0.5
    how: How = "drop"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(f"fewer_experts: keep must be in (0, 1], got {self.keep}.")


@dataclass
class KeptExperts:
    """What became of the experts of each mixture, by its name.

    Attributes:
        kept: experts that stay, under their old numbers.
        given: part of what all experts gave that the kept ones gave.
        unseen: experts that no token of the data came to; mixtures without any are left out.
    """

    kept: dict[str, list[int]] = field(default_factory=dict)
    given: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, list[int]] = field(default_factory=dict)


class _Seen:
    """What one mixture did with the data."""

    def __init__(self, layer: MixtureLayer) -> None:
        self.layer = layer
        self.given_E = torch.zeros(layer.num_experts, dtype=torch.float64)
        self.tokens_E = torch.zeros(layer.num_experts, dtype=torch.int64)
        self.x_TD: torch.Tensor | None = None
        self._weights_S = self._experts_S = torch.zeros(0)

    def entered(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The experts are called: with routes and weights, or with what routes are made of."""
        x_TD, way, weights = args
        if not isinstance(way, Routes):
            way = Routes.of_choice(way, self.layer.num_experts)
            weights = way.weights(weights)
        counts = torch.tensor(way.counts)
        self._weights_S = weights
        self._experts_S = torch.arange(self.layer.num_experts).repeat_interleave(counts)
        self.tokens_E += counts
        if self.x_TD is None:
            step = max(1, len(x_TD) // _COMPARED)
            self.x_TD = x_TD[::step][:_COMPARED].clone()

    def answered(self, module: nn.Module, args: tuple[Any, ...], y_SD: torch.Tensor) -> None:
        """The last layer gave the outputs of single experts."""
        gives_S = torch.linalg.vector_norm(y_SD, dim=1, dtype=torch.float64) * self._weights_S
        self.given_E.index_add_(0, self._experts_S, gives_S.double())

    def scores(self) -> torch.Tensor:
        """The mean over the tokens that an expert saw; 0 if it saw none."""
        return self.given_E / self.tokens_E.clamp(min=1)


def fewer_experts(
    model: nn.Module,
    batches: Sequence[Batch],
    settings: FewerSettings,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> KeptExperts:
    """Take experts out of every mixture of a model, in place; it is as it was on an error.

    Args:
        model: dense layers; experts of transformers are adopted.
        batches: calibration data.
        settings: how many, and how.
        tick: called after each batch with how many are done and how many there are.
    """
    with unchanged_on_error(model, contents=()), torch.no_grad():
        layers = mixtures_of(adopt_experts(model))
        if not layers:
            raise TargetError(f"{type(model).__name__}: has no mixture of experts.")
        noted = [_Seen(layer) for layer in layers]
        with evaluating(model), ExitStack() as stack:
            for seen in noted:
                own = seen.layer
                stack.enter_context(hooked([own.experts.register_forward_pre_hook(seen.entered)]))
                stack.enter_context(hooked([own.down.register_forward_hook(seen.answered)]))
            for number, batch in enumerate(batches):
                batch.run(model)
                tick(number + 1, len(batches))
        result, mixing = KeptExperts(), {}
        for seen in noted:
            mixing[seen.layer.name] = _mixing(seen, settings, result)
        mix_experts(model, mixing)
    return result


def _mixing(seen: _Seen, settings: FewerSettings, result: KeptExperts) -> torch.Tensor:
    name, count = seen.layer.name, seen.layer.num_experts
    if seen.x_TD is None or not int(seen.tokens_E.sum()):
        raise InputError(f"fewer_experts: no token of the data reached {name}.")
    scores = seen.scores()
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"fewer_experts: {name} gives NaN or Inf on the data.")
    left = max(1, round(settings.keep * count))
    kept = scores.argsort(descending=True, stable=True)[:left].sort().values
    unseen = (seen.tokens_E == 0).nonzero().flatten().tolist()
    if unseen:
        result.unseen[name] = unseen
    result.kept[name] = kept.tolist()
    result.given[name] = float(seen.given_E[kept].sum() / seen.given_E.sum().clamp(min=1e-300))
    mix = torch.zeros(left, count, dtype=torch.float64)
    mix[torch.arange(left), kept] = 1.0
    if settings.how == "drop" or left == count:
        return mix
    # One token at least, so that an expert without any still has its own weights.
    tokens_E = seen.tokens_E.clamp(min=1).double()
    home_E = _homes(seen.layer, seen.x_TD, kept)
    mix = torch.zeros_like(mix)
    mix[home_E, torch.arange(count)] = tokens_E
    return mix / mix.sum(1, keepdim=True)


def _homes(layer: MixtureLayer, x_TD: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The place among the kept experts that every expert goes to."""
    count = layer.num_experts
    outputs = []
    for expert in range(count):
        way = Routes.of_choice(torch.full((len(x_TD), 1), expert), count)
        ones = torch.ones(len(x_TD), dtype=x_TD.dtype)
        arguments: Any = (x_TD, way, ones)
        if hasattr(layer.experts, "rules"):
            arguments = (x_TD, torch.full((len(x_TD), 1), expert), ones[:, None])
        flat = layer.experts(*arguments).flatten().double()
        outputs.append(flat / torch.linalg.vector_norm(flat).clamp(min=1e-300))
    alike = torch.stack(outputs) @ torch.stack([outputs[i] for i in kept.tolist()]).t()
    alike[kept] = torch.eye(len(kept), dtype=alike.dtype)
    return alike.argmax(1)

# SPDX-License-Identifier: Apache-2.0
"""MoE-fication: the neurons of a trained feed-forward part, dealt out to experts.

Neurons that fire for the same tokens go together, all experts equally large. Those that fire for
most tokens may be shared: every token has them. A router is fitted to how much each expert gives.
With all experts active the model computes what it did; with a part of them, what the others would
have added is missing. (arXiv 2110.01786; shared experts as in CMoE, 2502.04416.)

An expert that is chosen must count in full, but routers give weights that sum to 1 over the k
experts of a token. So the second layer is multiplied by k, and logits are made so small that
weights differ from 1 / k by less than a thousandth. The order of logits, which chooses, stays.

Legend: T tokens, D width, F neurons of the part, E routed experts, k of a token, S shared ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch, rows_of
from gossamer.nn.surgery import unchanged_on_error
from gossamer.nn.surgery.mixtures import (
    ExpertWeights,
    FeedForwardPart,
    MixtureSizes,
    become_mixture,
    feed_forwards,
)
from gossamer.pruning.calibration.flow import evaluating, stops
from gossamer.pruning.mixtures.clusters import balanced_clusters
from gossamer.pruning.mixtures.router_fit import fit_router

_LARGEST_LOGIT = 1e-3
# A neuron fires for the part of tokens for which it gives most.
_FIRES = 0.1
# Tokens that neurons are compared on; a router is fitted to all.
_COMPARED = 8192


@dataclass(frozen=True)
class MoefySettings:
    """How feed-forward parts are dealt out.

    Attributes:
        experts: parts of one size that the neurons are dealt out to, shared ones included.
        top_k: routed experts of a token.
        shared: of the experts, those that every token has.
        seed: of the first centres.
    """

    experts: int = 16
    top_k: int = 4
    shared: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.experts < 1 or not 0 <= self.shared < self.experts:
            raise InputError(
                f"moefy: shared must be below the number of experts, {self.experts}, got"
                f" {self.shared}."
            )
        if not 1 <= self.top_k <= self.experts - self.shared:
            raise InputError(
                f"moefy: top_k must be in [1, {self.experts - self.shared}], the routed experts,"
                f" got {self.top_k}."
            )

    @property
    def active(self) -> float:
        """The part of the neurons that a token has."""
        return (self.top_k + self.shared) / self.experts


@dataclass
class Moefied:
    """What a token now has of each part.

    Attributes:
        active: part of the neurons.
        given: by block, the part of what all neurons give (squares summed) that the chosen experts
            give.
        best: the same if the best experts were chosen for each token.
        unseen: by block, experts that no token of the data chose; those with none are left out.
    """

    active: float
    given: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, list[int]] = field(default_factory=dict)


def moefy(
    model: nn.Module,
    batches: Sequence[Batch],
    settings: MoefySettings,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Moefied:
    """Deal out the feed-forward parts of a dense model, in place; it takes a class with experts.

    Args:
        model: of a family that has such a class; as it was if an error is raised.
        batches: calibration data; padding does not count.
        settings: how many experts.
        tick: called after each block with how many are done and how many there are.
    """
    parts = feed_forwards(model)
    wide = next((part for part in parts if part.width % settings.experts), None)
    if not parts or wide is not None:
        found = f"{wide.block} has {wide.width} neurons" if wide else "the model has no blocks"
        raise InputError(
            f"moefy: {found}, which {settings.experts} experts of one size do not divide. Choose a"
            " number of experts that does."
        )
    result, weights = Moefied(settings.active), {}
    is_switch = not hasattr(model, "config")
    seen: list[torch.Tensor] = []
    flow = [layer for part in parts for layer in (part.ups[0], part.down)]
    keeps = [batch.keep for batch in batches]
    with unchanged_on_error(model, contents=()), torch.no_grad():
        with evaluating(model):
            for number, stop in enumerate(stops([b.call(model) for b in batches], flow)):
                rows = [
                    rows_of(x, keeps[i]) for x, i in zip(stop.inputs, stop.batches, strict=True)
                ]
                if stop.module is parts[number // 2].ups[0]:
                    seen = rows
                    continue
                part = parts[number // 2]
                x_TD, h_TF = torch.cat(seen).float(), torch.cat(rows).float()
                weights[part.block] = _dealt_out(part, x_TD, h_TF, settings, is_switch, result)
                tick(number // 2 + 1, len(parts))
        missing = next((part.block for part in parts if part.block not in weights), None)
        if missing is not None:
            raise InputError(f"moefy: no batch of the data reached {missing}.")
        each = parts[0].width // settings.experts
        sizes = MixtureSizes(
            settings.experts - settings.shared, settings.top_k, each, settings.shared * each
        )
        become_mixture(model, sizes, weights)
    return result


def _dealt_out(
    part: FeedForwardPart,
    x_TD: torch.Tensor,
    h_TF: torch.Tensor,
    settings: MoefySettings,
    is_switch: bool,
    result: Moefied,
) -> ExpertWeights:
    if not len(x_TD) or not bool(torch.isfinite(h_TF).all()):
        what = "no token reached it" if not len(x_TD) else "its activations hold NaN or Inf"
        raise InputError(f"moefy: {part.block}: {what}, so its neurons cannot be compared.")
    norms_F = torch.linalg.vector_norm(part.down.weight.detach().float(), dim=0)
    gives_TF = (h_TF * norms_F).square()
    each = part.width // settings.experts
    shared_S, routed = _split(gives_TF, settings.shared * each)
    step = -(-len(gives_TF) // _COMPARED)
    fired = _fires(gives_TF[::step, routed])
    count, top_k = settings.experts - settings.shared, settings.top_k
    neurons_EF = routed[balanced_clusters(fired.t(), count, settings.seed)]
    gives_TE = gives_TF[:, neurons_EF.flatten()].view(-1, count, each).sum(2)
    router_ED = fit_router(x_TD, gives_TE)
    logits_TE = x_TD @ router_ED.t()
    _note(result, part.block, gives_TF, gives_TE, logits_TE, shared_S, top_k)
    router_ED *= _LARGEST_LOGIT / logits_TE.abs().max().clamp(min=1e-12)
    # A Switch layer weighs its only expert by about 1 / E.
    alone = is_switch and top_k == 1
    times = count if alone else top_k
    return _weights(part, neurons_EF, router_ED, shared_S, times, alone)


def _split(gives_TF: torch.Tensor, shared: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(neurons that are shared, the others): those that give most over all tokens."""
    # Of each token's whole, so that few loud tokens do not decide.
    share_F = (gives_TF / gives_TF.sum(1, keepdim=True).clamp(min=1e-30)).mean(0)
    order = share_F.argsort(descending=True, stable=True)
    return order[:shared].sort().values, order[shared:].sort().values


def _fires(gives_TF: torch.Tensor) -> torch.Tensor:
    """1 where a neuron is among those that give most for a token."""
    most = max(1, round(_FIRES * gives_TF.shape[1]))
    places = gives_TF.topk(most, dim=1).indices
    return torch.zeros_like(gives_TF).scatter_(1, places, 1.0)


def _note(
    result: Moefied,
    block: str,
    gives_TF: torch.Tensor,
    gives_TE: torch.Tensor,
    logits_TE: torch.Tensor,
    shared_S: torch.Tensor,
    top_k: int,
) -> None:
    always, whole = float(gives_TF[:, shared_S].sum()), float(gives_TF.sum()) or 1.0
    chosen_Tk = logits_TE.topk(top_k, dim=1).indices
    result.given[block] = (always + float(gives_TE.gather(1, chosen_Tk).sum())) / whole
    result.best[block] = (always + float(gives_TE.topk(top_k, dim=1).values.sum())) / whole
    counts = torch.bincount(chosen_Tk.flatten(), minlength=logits_TE.shape[1])
    unseen = (counts == 0).nonzero().flatten().tolist()
    if unseen:
        result.unseen[block] = unseen


def _weights(
    part: FeedForwardPart,
    neurons_EF: torch.Tensor,
    router_ED: torch.Tensor,
    shared_S: torch.Tensor,
    times: int,
    alone: bool,
) -> ExpertWeights:
    count, each = neurons_EF.shape
    ups = [layer.weight.detach() for layer in part.ups]
    down = part.down.weight.detach()
    flat = neurons_EF.flatten()
    up = torch.cat([weight[flat].view(count, each, -1) for weight in ups], 1)
    held: Any = part.ups[0].bias
    up_bias = None if held is None else held.detach()[flat].view(count, each)
    # The bias of the part is added once: weights of a token's experts sum to 1.
    bias = part.down.bias
    down_bias = None if bias is None else bias.detach().expand(count, -1) * (times if alone else 1)
    shared: tuple[torch.Tensor, ...] = ()
    if len(shared_S):
        shared = (*(weight[shared_S].clone() for weight in ups), down[:, shared_S].clone())
    return ExpertWeights(
        up,
        down[:, flat].view(len(down), count, each).transpose(0, 1).contiguous() * times,
        router_ED.to(down.dtype),
        up_bias,
        down_bias,
        shared,
    )

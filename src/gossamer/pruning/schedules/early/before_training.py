# SPDX-License-Identifier: Apache-2.0
"""Masks made before the first step, which never move: random, SNIP, GraSP, SynFlow.

They are made of what a weight is worth at initialisation; higher is kept. Known result (arXiv
2009.08576): these masks can be shuffled within each layer without loss. What they find is how many
weights a layer needs, not which ones.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.pruning.calibration.flow import hooked, kept_flags
from gossamer.pruning.gradients import GradientPasses
from gossamer.pruning.schedules.base import (
    Events,
    RandomStart,
    checked_scores,
    layer_masks,
    pruned_last,
)
from gossamer.pruning.targets import Target


def snip(passes: GradientPasses, targets: Sequence[Target]) -> list[torch.Tensor]:
    """|gradient * weight| [R, K] (arXiv 1810.02340): what the loss loses to first order."""
    weights = [target.weight.detach().flatten(1) for target in targets]
    total = [torch.zeros_like(weight).float() for weight in weights]
    with _as_before(passes.model):
        for gradients in passes.each(targets):
            total = [a + b for a, b in zip(total, gradients, strict=True)]
    return [(a * weight).abs() for a, weight in zip(total, weights, strict=True)]


def grasp(
    passes: GradientPasses, targets: Sequence[Target], temperature: float
) -> list[torch.Tensor]:
    """Weight * (Hessian gradient) [R, K] (arXiv 2002.07376): what the gradient's norm lives on."""

    def divide(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return output / temperature
        raise InputError(
            f"grasp: expected logits as output, got {type(output).__name__}. Wrap the model so that"
            " it gives its logits, or set temperature: 1."
        )

    handles = [passes.model.register_forward_hook(divide)] if temperature != 1.0 else []
    with _as_before(passes.model), hooked(handles):
        products = hessian_times_gradient(passes, targets)
    pairs = zip(products, targets, strict=True)
    scores = [(product * target.weight.detach()).flatten(1) for product, target in pairs]
    # Only ranks matter; the reference divides too, and keeps small numbers out of trouble.
    scale = sum(float(score.double().sum()) for score in scores)
    return [score / (abs(scale) + 1e-10) for score in scores]


def hessian_times_gradient(passes: GradientPasses, targets: Sequence[Target]) -> list[torch.Tensor]:
    """H g in the shapes of the weights, for the sum of the losses of all batches."""
    weights = [target.weight for target in targets]
    summed = [torch.zeros_like(weight) for weight in weights]
    for number, batch in enumerate(passes.batches):
        found = _gradients(passes.value(number, batch), weights, graph=False)
        summed = [a + b for a, b in zip(summed, found, strict=True)]
    products = [torch.zeros_like(weight) for weight in weights]
    for number, batch in enumerate(passes.batches):
        found = _gradients(passes.value(number, batch), weights, graph=True)
        inner = sum((a * b).sum() for a, b in zip(summed, found, strict=True))
        second = _gradients(inner, weights, graph=False)  # type: ignore[arg-type]
        products = [a + b for a, b in zip(products, second, strict=True)]
    return products


def synflow(model: nn.Module, names: Sequence[str], batch: Batch) -> list[torch.Tensor]:
    """Weight * dR/dweight [R, K] (arXiv 2006.05467), R the sum of outputs of the absolute network.

    In float64: R is a product over all layers, which overflows float32 in deep networks.

    Args:
        model: is copied.
        names: of its masked layers.
        batch: only the shape of its first tensor is used.
    """
    example = batch.first_tensor()
    if example is None or not example.is_floating_point():
        raise InputError(
            "synflow: needs a batch whose first tensor is floating point, for an input of ones in"
            " its shape; token numbers cannot be ones. Use snip or grasp."
        )
    linear = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        for tensor in [*linear.parameters(), *linear.buffers()]:
            if tensor.is_floating_point():
                tensor.abs_()
    ones = torch.ones((1, *example.shape[1:]), dtype=torch.float64, device=example.device)
    # The output projection of nn.MultiheadAttention shows a masked weight, not its Parameter.
    layers = dict(sparse_layers(linear, "masked"))
    lost = [name for name in names if name not in layers]
    if lost:
        raise InputError(
            f"synflow: {lost[0]} is no masked layer in a deep copy of the model, which is what is"
            " scored. Let copy.deepcopy copy the whole model, or use snip or grasp."
        )
    weights = [layers[name].weight_parameter() for name in names]
    linear.requires_grad_(True)
    with torch.enable_grad():
        output = linear(ones)
        if not isinstance(output, torch.Tensor):
            raise InputError(f"synflow: expected a tensor as output, got {type(output).__name__}.")
        found = _gradients(output.sum(), weights, graph=False)
    scores = [(g * w.detach()).flatten(1) for g, w in zip(found, weights, strict=True)]
    if not all(score.isfinite().all() for score in scores):
        raise InputError("synflow: the flow through the network overflows float64.")
    return scores


def _gradients(value: torch.Tensor, weights: list[nn.Parameter], graph: bool) -> list[torch.Tensor]:
    found = torch.autograd.grad(value, weights, create_graph=graph, allow_unused=True)
    return [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(weights, found, strict=True)
    ]


@contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """Flags, buffers (running means) and the random state afterwards as before."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with kept_flags(model), torch.random.fork_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, saved in buffers:
                    buffer.copy_(saved)


def user_passes(model: nn.Module, data: Sequence[Any], loss: Any) -> GradientPasses:
    """Batches and loss as users give them: `loss(model, batch)` with the batch as it is."""
    batches = [item if isinstance(item, Batch) else Batch(item) for item in data]
    return GradientPasses(model, batches, lambda m, batch: loss(m, batch.arguments))


class Random(RandomStart):
    """A random mask, settled from the start."""

    kind = "random"

    def update(self, step: int) -> Events:
        """Nothing ever happens."""
        return []

    def is_settled(self, step: int) -> bool:
        """Always."""
        return True


@dataclass(eq=False, kw_only=True)
class BeforeTraining(Random):
    """Masks by what weights are worth at initialisation.

    Attributes:
        kind: "snip", "grasp" or "synflow".
        density: of all layers together, reached in `rounds` rounds: density^(k / rounds) after k.
        rounds: how often is scored and pruned.
        temperature: of GraSP's logits.
        data: batches.
        loss: loss(model, batch) -> a tensor with one number; not needed by SynFlow.
    """

    kind: str
    rounds: int
    temperature: float
    data: Sequence[Any] | None
    loss: Callable[..., torch.Tensor] | None

    def __post_init__(self) -> None:
        needs_loss = self.kind != "synflow"
        if not self.data:
            what = "batches and a loss" if needs_loss else "a batch, for the shape of its input"
            raise InputError(
                f"schedule {self.kind}: needs {what}: gossamer.attach(..., data=[batch],"
                " loss=lambda model, batch: ...)."
            )
        if needs_loss and not callable(self.loss):
            raise InputError(
                f"schedule {self.kind}: needs a loss: gossamer.attach(..., loss=lambda model,"
                " batch: ...), a tensor with one number for a batch of data."
            )

    def start(self) -> Events:
        """All rounds."""
        run = self.run
        if self.rounds > 1:
            self.pattern_at(self.density)
        for number in range(1, self.rounds + 1):
            scores = [
                pruned_last(checked_scores(layer.name, score.to(layer.mask.device)), layer.mask)
                for layer, score in zip(run.layers, self._scores(), strict=True)
            ]
            self.prune(scores, number, self.rounds)
        # Batches are not needed again, and a controller lives as long as the run.
        self.data = self.loss = None
        return [run.event(0, "mask", rounds=self.rounds)]

    def _scores(self) -> list[torch.Tensor]:
        run = self.run
        passes = user_passes(run.model, self.data or (), self.loss)
        if self.kind == "synflow":
            return synflow(run.model, [layer.name for layer in run.layers], passes.batches[0])
        targets = [Target(layer.name, layer.module) for layer in run.layers]
        snips = self.kind == "snip"
        scores = snip(passes, targets) if snips else grasp(passes, targets, self.temperature)
        if run.replicas is not None:
            for score in scores:
                dist.all_reduce(score, group=run.replicas)
        return scores


class Shuffled(BeforeTraining):
    """The ablation: the same counts, drawn positions."""

    def start(self) -> Events:
        """Find the counts on a copy of the weights, then draw."""
        run = self.run
        weights = [layer.weight.detach().clone() for layer in run.layers]
        events = super().start()
        counts = [int(layer.mask.sum()) for layer in run.layers]
        run.change(layer_masks(self.random_scores(0), counts, run.pattern), run.pattern)
        with torch.no_grad():
            # Weights that the first mask had cut come back with their initial values.
            for layer, weight in zip(run.layers, weights, strict=True):
                layer.weight.data.copy_(torch.where(layer.shaped(layer.mask), weight, 0.0))
        return events

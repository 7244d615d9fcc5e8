# SPDX-License-Identifier: Apache-2.0
"""The activation of feed-forward blocks becomes ReLU, so that it gives real zeros.

`find_feed_forward` finds the blocks, `choose_shifts` reads shifts off data, `relufy` replaces the
activations and `restore_activations` puts them back.

A shifted ReLU, relu(x - b), gives more of them: b is read off the distribution of what reaches the
activation. The model changes; short training wins back what that costs. In gated blocks the
activation of the gate is replaced, and a zero gate makes a zero product.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import relu

from gossamer.errors import InputError, TargetError
from gossamer.nn.families import answers, block_of
from gossamer.nn.surgery import inherit_hooks
from gossamer.nn.surgery.matrix_layers import is_matrix_layer

__all__ = [
    "FeedForward",
    "ShiftedReLU",
    "choose_shifts",
    "find_feed_forward",
    "fold_shifts",
    "relufy",
    "restore_activations",
]

Call = Callable[[nn.Module, Any], object]
_BINS = 8192  # of a histogram


class ShiftedReLU(nn.Module):
    """relu(x - shift); the shift is saved with the model and not trained."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(float(shift)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero up to the shift, then rising with slope 1."""
        return relu(x - self.get_buffer("shift").to(x.dtype))

    def extra_repr(self) -> str:
        """The shift, in `print(model)`."""
        return f"shift={float(self.get_buffer('shift')):.4g}"


class Histogram:
    """Numbers that come in parts, and their quantiles.

    Two passes: `widen` learns the range, `count` fills equal bins.
    """

    def __init__(self) -> None:
        self._low, self._high = float("inf"), float("-inf")
        self._counts = torch.zeros(_BINS, dtype=torch.float64)

    def widen(self, values: torch.Tensor) -> None:
        """Let the range include `values`."""
        if values.numel():
            low, high = (float(bound) for bound in values.aminmax())
            if not (abs(low) < float("inf") and abs(high) < float("inf")):
                raise InputError("histogram: values hold NaN or infinity.")
            self._low, self._high = min(self._low, low), max(self._high, high)

    def count(self, values: torch.Tensor) -> None:
        """Count `values`, all inside the range."""
        if self._high > self._low:
            flat = values.detach().float().flatten().cpu()
            counts = torch.histc(flat, _BINS, self._low, self._high)
            self._counts += counts.double()

    def quantile(self, fraction: float) -> float:
        """The number below which `fraction` of all values lie, linear within a bin."""
        total = float(self._counts.sum())
        if not total:
            if self._high == self._low:
                return self._low
            raise InputError("histogram: no values were counted.")
        sums = self._counts.cumsum(0)
        wanted = fraction * total
        place = min(int(torch.searchsorted(sums, wanted)), _BINS - 1)
        inside = float(self._counts[place])
        before = float(sums[place]) - inside
        share = (wanted - before) / inside if inside else 0.0
        return self._low + (place + share) * (self._high - self._low) / _BINS


# How configurations of transformers name the activation.
_CONFIG_NAMES = {classes.activation for classes in answers("classes").values()}
_ACTIVATION_MODULES = ("torch.nn.modules.activation", "transformers.activations", __name__)


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward block.

    Attributes:
        name: dotted name of its block, or of the Sequential it is in.
        parent: module that holds the activation.
        attribute: its name there.
        first: the layer before the activation.
        down_name: dotted name of the layer whose input has the zeros.
        down: that layer.
    """

    name: str
    parent: nn.Module
    attribute: str
    first: nn.Module
    down_name: str
    down: nn.Module

    @property
    def activation(self) -> nn.Module:
        """The activation as it is now."""
        found: nn.Module = getattr(self.parent, self.attribute)
        return found

    def put(self, activation: nn.Module) -> None:
        """Another activation in its place, with its hooks."""
        inherit_hooks(activation, self.activation)
        setattr(self.parent, self.attribute, activation)


def find_feed_forward(model: nn.Module) -> list[FeedForward]:
    """Blocks of known families, and `Linear, activation, Linear` inside any `nn.Sequential`."""
    found = []
    for name, module in model.named_modules():
        parts = block_of(module)
        if parts is not None:
            parent, _, attribute = parts.activation.rpartition(".")
            prefix = f"{name}." if name else ""
            first, down = parts.expansions[0], parts.down
            found.append(
                FeedForward(
                    name, module.get_submodule(parent), attribute,
                    module.get_submodule(first),
                    prefix + down, module.get_submodule(down),
                )
            )  # fmt: skip
        elif isinstance(module, nn.Sequential):
            found += _in_sequence(name, module)
    return found


@dataclass(frozen=True)
class OldActivations:
    """What `relufy` replaced.

    Attributes:
        modules: activations by block name.
        config: what the model's configuration called them.
    """

    modules: dict[str, nn.Module]
    config: dict[str, Any]


def relufy(model: nn.Module, shifts: Mapping[str, float] | float = 0.0) -> OldActivations:
    """Replace the activation of every feed-forward block, in place.

    Args:
        model: its blocks are those of `find_feed_forward`.
        shifts: one shift for all blocks, or one per block name (`choose_shifts`); 0 is plain ReLU.

    Returns:
        The old activations, for `restore_activations`. The model's configuration says "relu" from
        now on, so that a saved model is loaded with it.
    """
    blocks = _blocks(model)
    wanted = shifts if isinstance(shifts, Mapping) else {block.name: shifts for block in blocks}
    if set(wanted) != {block.name for block in blocks}:
        raise InputError(
            f"relufy: expected a shift for each of {', '.join(block.name for block in blocks)},"
            f" got {', '.join(wanted) or 'none'}."
        )
    for name, shift in wanted.items():
        if not 0 <= float(shift) < float("inf"):
            raise InputError(f"relufy: the shift of {name} must be 0 or more, got {shift}.")
    config = getattr(model, "config", None)
    names = {name: getattr(config, name) for name in _CONFIG_NAMES if hasattr(config, name)}
    old = OldActivations({block.name: block.activation for block in blocks}, names)
    for block in blocks:
        shift = float(wanted[block.name])
        new = ShiftedReLU(shift) if shift else nn.ReLU()
        like = next(block.first.parameters(), None)
        if like is not None:
            new.to(like.device)
        block.put(new)
    for name in old.config:
        setattr(model.config, name, "relu")
    return old


def restore_activations(model: nn.Module, old: OldActivations) -> None:
    """Undo `relufy`: with untouched weights the model computes what it did before, to the bit."""
    blocks = {block.name: block for block in _blocks(model)}
    unknown = [name for name in old.modules if name not in blocks]
    if unknown:
        raise InputError(f"restore_activations: the model has no block {unknown[0]}.")
    for name, activation in old.modules.items():
        setattr(blocks[name].parent, blocks[name].attribute, activation)
    for name, value in old.config.items():
        setattr(model.config, name, value)


def fold_shifts(model: nn.Module) -> list[str]:
    """Move shifts into the biases before them, where there are any; the names of those blocks.

    relu(w x + c - b) is a plain ReLU behind the bias c - b, which every runtime and file format
    knows. Blocks without a bias keep their `ShiftedReLU`.
    """
    folded = []
    for block in _blocks(model):
        bias = getattr(block.first, "bias", None)
        if isinstance(block.activation, ShiftedReLU) and isinstance(bias, torch.Tensor):
            with torch.no_grad():
                bias -= block.activation.get_buffer("shift").to(bias.dtype)
            block.put(nn.ReLU())
            folded.append(block.name)
    return folded


def choose_shifts(
    model: nn.Module, batches: Iterable[Any], call: Call, *, zeros: float
) -> dict[str, float]:
    """Per block, the shift with which the fraction `zeros` of its activations would be zero.

    Never below 0: a block that has more zeros with a plain ReLU keeps them.

    Args:
        model: run in eval mode, without gradients.
        batches: calibration data; gone through twice, for the range and for the counts.
        call: `call(model, batch)` runs the model.
        zeros: fraction between 0 and 1.
    """
    if not 0 <= zeros < 1:
        raise InputError(f"choose_shifts: zeros must be at least 0 and below 1, got {zeros}.")
    blocks, batches = _blocks(model), list(batches)
    if not batches:
        raise InputError("choose_shifts: batches is empty.")
    histograms = {block.name: Histogram() for block in blocks}
    was_training = model.training
    model.eval()
    try:
        for take in (Histogram.widen, Histogram.count):
            handles = [
                block.activation.register_forward_pre_hook(
                    lambda module, args, histogram=histograms[block.name], take=take: take(
                        histogram, args[0].detach()
                    )
                )
                for block in blocks
            ]
            try:
                for batch in batches:
                    with torch.no_grad():
                        call(model, batch)
            finally:
                for handle in handles:
                    handle.remove()
    finally:
        model.train(was_training)
    return {name: max(0.0, histogram.quantile(zeros)) for name, histogram in histograms.items()}


def _blocks(model: nn.Module) -> list[FeedForward]:
    blocks = find_feed_forward(model)
    if not blocks:
        raise TargetError(
            f"relufication: {type(model).__name__} has no feed-forward block of a known family"
            f" ({', '.join(answers('block'))}) and no Sequential with Linear, activation, Linear."
        )
    for block in blocks:
        if not isinstance(block.activation, nn.Module):
            raise TargetError(f"{block.name}: its activation is a function, not a module.")
    return blocks


def _in_sequence(name: str, sequence: nn.Sequential) -> list[FeedForward]:
    members = list(sequence.named_children())
    found = []
    for (_, first), (attribute, between), (down_name, down) in zip(
        members, members[1:], members[2:], strict=False
    ):
        known = type(between).__module__ in _ACTIVATION_MODULES
        if known and _is_linear(first) and _is_linear(down):
            own = f"{name}." if name else ""
            found.append(
                FeedForward(
                    own + attribute, sequence, attribute, first, own + down_name, down,
                )
            )  # fmt: skip
    return found


def _is_linear(layer: nn.Module) -> bool:
    """Dense, masked, compact or packed: all have the attributes of nn.Linear, Conv1D has not."""
    return hasattr(layer, "in_features") or is_matrix_layer(layer)

# SPDX-License-Identifier: Apache-2.0
"""Pruned layers that compute as the int8 engine will, while they are trained.

Weights are rounded in every forward, to the grid of each row. Activations get one scale per token,
which is what `gossamer.compile(precision="int8")` measures, or one per layer: calibrated on some
batches and fixed, or learned from there (LSQ).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.formats import SparseMatrix
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers import CompactWeight, MaskedWeight
from gossamer.nn.rounding import (
    best_scale,
    rounded_activations,
    rounded_by_scale,
    rounded_values,
    rounded_weight,
)
from gossamer.nn.surgery import replace_module
from gossamer.ops.linear import ACTIVATION_BITS, pack_int8

# Calls of a model.
Calls = Iterable[Callable[[nn.Module], object]]
Scales = Literal["token", "calibrated", "learned"]
SCALES: tuple[Scales, ...] = get_args(Scales)
PrunedLayer = CompactWeight | MaskedWeight
# Enough for the tail of one layer's activations, little beside them.
_SAMPLED_PER_CALL = 1 << 15


class FakeInt8(nn.Module):
    """A pruned layer with int8 weights and activations, in float arithmetic.

    Args:
        layer: its Parameters stay where they are and are trained.
        bits: of an activation, 7 or 8.
        scale: of all activations; None measures every token (every image, for a convolution).
        learned: the scale is a Parameter.
    """

    log_scale: torch.Tensor | None
    _counts: torch.Tensor

    def __init__(
        self, layer: PrunedLayer, bits: int, scale: float | None = None, *, learned: bool = False
    ) -> None:
        super().__init__()
        self.layer = layer
        self.bits = bits
        self.training = layer.training
        self._num_dims = len(layer.weight_shape) - 1  # of an input without its batch
        # The logarithm: a step of the optimizer is then a fraction of the scale, which stays > 0.
        log_scale = None if scale is None else torch.tensor(math.log(scale))
        if learned and log_scale is not None:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)
        if isinstance(layer, CompactWeight):
            self.register_buffer("_counts", layer.mask().sum(dim=1), persistent=False)

    @property
    def scale(self) -> float | None:
        """What one step of an activation is worth; None if every token has its own."""
        return None if self.log_scale is None else float(self.log_scale.detach().exp())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer on rounded activations, with rounded weights."""
        if self.log_scale is None:
            x = rounded_activations(x, self.bits, self._num_dims)
        else:
            x = rounded_by_scale(x, self.log_scale.exp().to(x.dtype), self.bits)
        layer = self.layer
        if isinstance(layer, CompactWeight):
            weights = {"values": rounded_values(layer.values, self._counts)}
            # A dense copy is filed under the address of the values, which these share with others.
            layer.refresh()
        else:
            weights = {"weight": rounded_weight(layer.masked_weight())}
        y: torch.Tensor = torch.func.functional_call(layer, weights, (x,))
        return y


@dataclass(frozen=True)
class QuantisedLayers:
    """What `fake_int8` put in, by the name of the layer."""

    layers: dict[str, FakeInt8]

    def scales(self) -> dict[str, float]:
        """Calibrated or learned scales of activations, for `ops.int8.pack_int8`."""
        found = {name: layer.scale for name, layer in self.layers.items()}
        return {name: scale for name, scale in found.items() if scale is not None}


def engine_bits() -> int:
    """Bits of an activation in the int8 kernels of this CPU: 8 with VNNI, else 7."""
    return pack_int8(SparseMatrix.from_dense(torch.ones(1, 1))).activation_bits


@contextmanager
def fake_int8(
    model: nn.Module,
    scales: Scales = "token",
    *,
    bits: int | None = None,
    calibrate: Calls = (),
) -> Iterator[QuantisedLayers]:
    """Let every masked and compact layer of `model` compute in fake int8 inside of a block.

    Afterwards the layers themselves are back; their weights are as trained, not rounded.

    Args:
        model: its pruned layers are wrapped; Parameters stay the same objects.
        scales: of activations, see the top of this file.
        bits: of activations; None: what the kernels of this CPU use.
        calibrate: calls of the model whose activations choose the scales; not for "token".
    """
    if scales not in SCALES:
        raise InputError(f"fake int8: scales must be one of {', '.join(SCALES)}; got {scales!r}.")
    if bits is not None and bits not in ACTIVATION_BITS:
        raise InputError(f"fake int8: bits must be 7 or 8, got {bits!r}.")
    bits = bits or engine_bits()
    for name, module in model.named_modules():
        if isinstance(module, FakeInt8):
            raise InputError(f"fake int8: {name} is quantised already. Leave that block first.")
    pruned = sparse_layers(model, "masked", "compact")
    found = {name: layer for name, layer in pruned if layer.is_called}
    if not found:
        raise InputError(
            "fake int8: the model has no pruned layer. Prune it first:"
            " gossamer.sparsify(model, sparsity=0.9)."
        )
    samples = {} if scales == "token" else _magnitudes(model, found, calibrate)
    chosen = {name: best_scale(sample, bits) for name, sample in samples.items()}
    wrapped = {
        name: FakeInt8(layer, bits, chosen.get(name), learned=scales == "learned")
        for name, layer in found.items()
    }
    try:
        for name, layer in found.items():
            replace_module(model, layer, wrapped[name])
        yield QuantisedLayers(wrapped)
    finally:
        for wrapper in wrapped.values():
            replace_module(model, wrapper, wrapper.layer)


def _magnitudes(
    model: nn.Module,
    layers: dict[str, PrunedLayer],
    calls: Calls,
) -> dict[str, torch.Tensor]:
    """A sample of |x| of every layer, its largest included."""
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in layers}

    def note(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        flat = inputs[0].detach().abs().flatten()
        if flat.numel():
            stride = max(1, flat.numel() // _SAMPLED_PER_CALL)
            seen[name] += [flat[::stride].float(), flat.max().float().view(1)]

    with torch.no_grad(), ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(note, name)))
        for call in calls:
            call(model)
    missed = [name for name, parts in seen.items() if not parts]
    if missed:
        raise InputError(
            f"fake int8: no calibration batch reached {missed[0]} ({len(missed)} of {len(layers)}"
            " layers). Give batches with calibrate=[...], or use scales='token'."
        )
    return {name: torch.cat(parts) for name, parts in seen.items()}

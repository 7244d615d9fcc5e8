# SPDX-License-Identifier: Apache-2.0
"""The layers a controller moves the masks of: masked ones that start with every weight kept."""

from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError
from gossamer.nn import CompactWeight, MaskedWeight
from gossamer.patterns import Pattern, Unstructured
from gossamer.prune.oneshot import apply_plan
from gossamer.prune.plan import Plan, check_layer
from gossamer.prune.rules import Rules
from gossamer.prune.targets import find_targets

# Layers whose masks a controller moves; two of them would undo each other's work.
_CONTROLLED: "WeakSet[nn.Module]" = WeakSet()


@dataclass(frozen=True, eq=False)
class SparseLayer:
    """One weight with a mask.

    Attributes:
        name: dotted name of the layer.
        module: the masked layer; twins share its weight and mask.
        twins: other masked layers that hold the same weight.
    """

    name: str
    module: MaskedWeight
    twins: tuple[MaskedWeight, ...] = ()

    @property
    def weight(self) -> nn.Parameter:
        """The dense Parameter."""
        return self.module.weight_parameter()

    @property
    def mask(self) -> torch.Tensor:
        """Bool [R, K], not a copy."""
        return self.module._mask

    @property
    def matrix(self) -> torch.Tensor:
        """The weight as [R, K], zeros where it is pruned."""
        return self.module.masked_weight().detach().flatten(1)

    @property
    def everyone(self) -> tuple[MaskedWeight, ...]:
        """The module and its twins."""
        return (self.module, *self.twins)

    def shaped(self, matrix: torch.Tensor) -> torch.Tensor:
        """[R, K] in the shape of the weight."""
        return matrix.reshape(self.weight.shape)


def take_layers(
    model: nn.Module, pattern: Pattern, targets: Rules, ignore: Rules
) -> list[SparseLayer]:
    """Mask the targets of `model` with every weight kept, in place, and reserve them."""
    _check_model(model)
    found = find_targets(model, targets, ignore)
    for target in found:
        check_layer(target, pattern)
        if target.module in _CONTROLLED:
            raise InputError(
                f"{target.name}: a controller is attached already, and two would undo each other's"
                " masks. Go on with the first one, or call its close() before."
            )
        if isinstance(target.module, MaskedWeight) and not bool(target.module._mask.all()):
            raise InputError(
                f"{target.name}: is pruned already ({target.module.density:.3g} kept). A schedule"
                " starts from a dense layer: take to_dense() of it, or train on with its mask held."
            )
    # All kept: legal only where any mask is; the schedule gives layers their pattern with the mask.
    masks = [torch.ones_like(t.weight.detach().flatten(1), dtype=torch.bool) for t in found]
    apply_plan(model, Plan(Unstructured(), found, masks))
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = []
    for target in found:
        names = [target.name, *(name for name, _ in target.twins)]
        masked = [module for module in (modules[name] for name in names) if _is_masked(module)]
        layers.append(SparseLayer(target.name, masked[0], tuple(masked[1:])))  # type: ignore[arg-type]
        _CONTROLLED.update(masked)
    return layers


def release_layers(layers: list[SparseLayer]) -> None:
    """Another controller may take them."""
    for layer in layers:
        for module in layer.everyone:
            module.gradient_sum = None
            module.set_reach(None)
            _CONTROLLED.discard(module)


def _is_masked(module: nn.Module) -> bool:
    return isinstance(module, MaskedWeight)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model: expected a torch.nn.Module, got {type(model).__name__}.")
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                f"{name or 'the model'} is wrapped in DistributedDataParallel. Call"
                " gossamer.attach(model, ...) first, then wrap; when masks are settled, unwrap,"
                " gossamer.compact(model, optimizer), and wrap again."
            )
        if isinstance(module, CompactWeight):
            raise InputError(
                f"{name}: is compact, its mask is fixed. Attach before gossamer.compact, or make"
                " the layer dense again with to_dense()."
            )

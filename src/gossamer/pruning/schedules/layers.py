# SPDX-License-Identifier: Apache-2.0
"""The layers a controller moves the masks of: masked ones that start with every weight kept."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import FormatError, InputError, PatternError
from gossamer.formats.bits import unpack_bits
from gossamer.nn.layer_kinds import MOVING, sparse_layers
from gossamer.nn.layers import CompactWeight, MaskedWeight
from gossamer.nn.layers.parts import fault_in_stored_mask
from gossamer.patterns import Pattern, Unstructured, parse_pattern
from gossamer.pruning.oneshot import PruningPlan, apply_plan, check_layer
from gossamer.pruning.targets import Rules, find_targets

AnySparse = MaskedWeight | CompactWeight


@dataclass(frozen=True, eq=False)
class ControlledLayer:
    """One weight with a mask, found by name: after `gossamer.compact` nothing holds the dense one.

    Attributes:
        model: holds the layer.
        name: dotted name of the layer.
        twins: names of other masked layers that hold the same weight and mask.
    """

    model: nn.Module
    name: str
    twins: tuple[str, ...] = ()

    @property
    def current(self) -> AnySparse:
        """The layer as it is now."""
        module = self.model.get_submodule(self.name)
        if not isinstance(module, AnySparse):
            raise InputError(
                f"{self.name}: was replaced by a {type(module).__name__} while a controller was"
                " attached. Call ctl.close() before changing layers."
            )
        return module

    @property
    def module(self) -> MaskedWeight:
        """The masked layer."""
        if self.is_compact:
            raise InputError(
                f"{self.name}: is compact, but the schedule still moves masks. Call"
                " gossamer.compact(model, optimizer) when ctl.is_settled says so."
            )
        return self.current  # type: ignore[return-value]

    @property
    def is_compact(self) -> bool:
        """Whether its mask is fixed."""
        return self.current.form == "compact"

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
        return torch.where(self.mask, self.weight.detach().flatten(1), 0.0)

    @property
    def everyone(self) -> list[MaskedWeight]:
        """The masked layer and its twins."""
        twins = (self.model.get_submodule(name) for name in self.twins)
        return [self.module, *(twin for twin in twins if isinstance(twin, MaskedWeight))]

    def set_reach(self, reach: torch.Tensor | None) -> None:
        """Let gradients reach the entries of this bool [R, K] besides the kept ones."""
        for module in self.everyone:
            module.set_reach(reach)

    def shaped(self, matrix: torch.Tensor) -> torch.Tensor:
        """[R, K] in the shape of the weight."""
        return matrix.reshape(self.weight.shape)


def take_layers(
    model: nn.Module, pattern: Pattern, targets: Rules, ignore: Rules, *, holds: bool = False
) -> list[ControlledLayer]:
    """Mask the targets of `model` with every weight kept, in place, and reserve them.

    With `holds` only layers that are pruned already are taken, with their masks.
    """
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                f"{name or 'the model'} is wrapped in DistributedDataParallel. Call"
                " gossamer.attach(model, ...) first, then wrap; when masks are settled, unwrap,"
                " gossamer.compact(model, optimizer), and wrap again."
            )
    for name, _ in sparse_layers(model, "compact"):
        raise InputError(
            f"{name}: is compact, its mask is fixed. Attach before gossamer.compact, or make the"
            " layer dense again with to_dense()."
        )
    found = find_targets(model, targets, ignore)
    if holds:
        found = [t for t in found if t.mask is not None and not t.mask.all()]
    for target in found:
        check_layer(target, pattern)
        if target.module in MOVING:
            raise InputError(
                f"{target.name}: a controller is attached already, and two would undo each other's"
                " masks. Go on with the first one, or call its close() before."
            )
        if holds and target.mask is not None:
            _check_held(target.name, target.mask, pattern)
        elif target.mask is not None and not target.mask.all():
            raise InputError(
                f"{target.name}: is pruned already ({target.module.density:.3g} kept). A schedule"
                " starts from a dense layer: take to_dense() of it, or train on with its mask held."
            )
    if holds and not found:
        raise InputError(
            "schedule reopen: no layer of the model has a mask to go on from. Prune it first, grow"
            " it with opened below 1, or use the schedule rigl."
        )
    if not holds:
        # All kept: legal only where any mask is; the schedule gives layers their pattern.
        masks = [torch.ones_like(t.weight.detach().flatten(1), dtype=torch.bool) for t in found]
        apply_plan(model, PruningPlan(Unstructured(), found, masks))
    layers = [ControlledLayer(model, t.name, tuple(name for name, _ in t.twins)) for t in found]
    for layer in layers:
        MOVING.update(layer.everyone)
    return layers


def _check_held(name: str, mask: torch.Tensor, pattern: Pattern) -> None:
    try:
        pattern.validate(mask)
    except PatternError as error:
        raise InputError(
            f"{name}: its mask is not one of {pattern} ({error}). Give the schedule the pattern of"
            " the masks that are there."
        ) from error


def release_layers(layers: list[ControlledLayer]) -> None:
    """Another controller may take them."""
    for layer in layers:
        if layer.is_compact:
            continue
        layer.set_reach(None)
        for module in layer.everyone:
            module.gradient_sum = None
            MOVING.discard(module)


def restore_mask(layer: ControlledLayer, bits: torch.Tensor, pattern_text: str) -> None:
    """Give a layer the mask of a checkpoint; nothing changes where it has it already."""
    module, where = layer.current, f"load_state_dict: {layer.name}"
    pattern = parse_pattern(pattern_text)
    fault = fault_in_stored_mask(bits, module.matrix_shape, pattern, where)
    if fault is not None:
        raise FormatError(fault)
    is_same = torch.equal(module.mask_bits.cpu(), bits.cpu())
    if layer.is_compact:
        if not is_same:
            raise InputError(f"{where}: is compact with another mask than the state's.")
        return
    for each in layer.everyone:
        each.pattern = pattern
    if not is_same:
        layer.module.set_mask(unpack_bits(bits, module.matrix_shape[1]))

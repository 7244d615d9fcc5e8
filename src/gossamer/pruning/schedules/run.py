# SPDX-License-Identifier: Apache-2.0
"""What a schedule works on: layers, optimizer, length of the run, other processes; its events.

All masks move through `Run.change`: dropped weights become 0, weights that join start at 0, the
optimizer's state follows, survivors are not touched, and replicas are compared.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from gossamer.errors import DistributedError, InputError
from gossamer.nn.layers.parts import GradientSum
from gossamer.patterns import Pattern, Unstructured
from gossamer.pruning.schedules.layers import AnySparse, ControlledLayer
from gossamer.pruning.schedules.optimizer_entries import OptimizerEntries


@dataclass(frozen=True)
class Event:
    """Something a schedule did.

    Attributes:
        step: the optimizer steps done so far.
        kind: "mask" (masks moved), "dense" (all weights are back), "rewind" (weights or learning
            rate went back; `details["lr_step"]` is the step whose learning rate comes next),
            "distance" (an Early-Bird look), "ticket" (its mask is drawn), "postponed" (gradients
            were not finite, tried again one step later).
        sparsity: of the pruned layers, afterwards.
        details: numbers and texts that belong to the kind.
    """

    step: int
    kind: str
    sparsity: float
    details: dict[str, float | int | str | bool] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(eq=False)
class Run:
    """One training run.

    Attributes:
        model: is trained.
        layers: whose masks move.
        pattern: the masks' pattern where they are final.
        entries: the optimizer and its state of single weights.
        total_steps: optimizer steps of the whole run.
        replicas: processes with the same weights and other data; masks must be equal there.
        shards: processes that hold other layers of the same model; global budgets span them.
    """

    model: nn.Module
    layers: list[ControlledLayer]
    pattern: Pattern
    entries: OptimizerEntries
    total_steps: int
    replicas: Any = None
    shards: Any = None
    _elsewhere: tuple[int, int] = (0, 0)

    def sparsity(self) -> float:
        """Fraction of zeros in all layers together, those of other shards included."""
        own, other = self._counts(), self._elsewhere
        total = own[0] + other[0]
        return 1.0 - (own[1] + other[1]) / total if total else 0.0

    def agree_counts(self) -> None:
        """Learn how much other shards keep; all of them call it, whenever masks have moved."""
        if self.shards is None:
            return
        total, kept = self._counts()
        everywhere = torch.tensor([total, kept], device=self.layers[0].current.mask_bits.device)
        dist.all_reduce(everywhere, group=self.shards)
        self._elsewhere = int(everywhere[0]) - total, int(everywhere[1]) - kept

    def current(self) -> dict[str, AnySparse]:
        """The layers as they are now, by name."""
        return {layer.name: layer.current for layer in self.layers}

    def _counts(self) -> tuple[int, int]:
        """Weights of the layers of this process, and how many of them are kept."""
        current = self.current().values()
        total = sum(math.prod(module.weight_shape) for module in current)
        return total, sum(module.nnz for module in current)

    def event(self, step: int, kind: str, **details: float | int | str | bool) -> Event:
        """What happened, with the sparsity it left."""
        return Event(step, kind, self.sparsity(), details)

    def change(
        self,
        masks: Sequence[torch.Tensor],
        pattern: Pattern | None = None,
        reach: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Move all masks.

        Args:
            masks: bool [R, K] for every layer.
            pattern: what they obey; any mask is legal if it is left out.
            reach: bool [R, K], weights that train besides the kept ones.
        """
        for layer in self.layers:
            self.entries.check(layer.name, layer.weight)
        for number, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            before = trained_entries(layer)
            for module in layer.everyone:
                module.pattern = pattern or Unstructured()
            layer.set_reach(None if reach is None else reach[number])
            layer.module.set_mask(mask)
            after = trained_entries(layer)
            dropped, grown = layer.shaped(before & ~after), layer.shaped(after & ~before)
            self.entries.move(layer.name, layer.weight, dropped, grown)
        if self.replicas is not None:
            code = int(self.digest()[:15], 16)
            extremes = torch.tensor([code, -code], device=self.layers[0].mask.device)
            dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.replicas)
            if int(extremes[0]) != -int(extremes[1]):
                raise DistributedError(
                    "masks differ between replicas: they hold other weights or draw other numbers."
                    " Start all ranks from the same weights, attach with the same schedule and"
                    " seed, and let the gradients be reduced (DistributedDataParallel) before each"
                    " step."
                )
        self.agree_counts()

    def arm(self, wanted: bool) -> None:
        """Let the next backward pass add to the dense gradients, or forget them."""
        for layer in self.layers:
            collected = (layer.module.gradient_sum or GradientSum()) if wanted else None
            for module in layer.everyone:
                module.gradient_sum = collected

    def gradients(self) -> list[torch.Tensor]:
        """Dense gradients [R, K] of the last backward passes; of replicas, their mean."""
        self.agree_gradients()
        found = []
        for layer in self.layers:
            total = _collected(layer)
            if total is None:
                raise InputError(
                    f"{layer.name}: this step's update needs the gradient of its weight, but no"
                    " backward pass went through the layer since the last step. Call ctl.step()"
                    " once per optimizer.step(), after it."
                )
            found.append(total.flatten(1))
        return found

    def agree_gradients(self) -> None:
        """Replicas add up what they collected in this step: all of them then have the same sum.

        So it is enough that one of them writes it down, and one that was resumed adds in the same
        order.
        """
        if self.replicas is None:
            return
        for layer in self.layers:
            collected = layer.module.gradient_sum
            if collected is not None and collected.total is not None:
                mean = collected.total
                dist.all_reduce(mean, group=self.replicas)
                mean /= dist.get_world_size(self.replicas)
                collected.agreed = mean if collected.agreed is None else collected.agreed + mean
                collected.total = None

    def partial_gradients(self) -> dict[str, torch.Tensor]:
        """What was collected so far, by layer; the same in all replicas."""
        found = {layer.name: _collected(layer) for layer in self.layers}
        return {name: total.clone() for name, total in found.items() if total is not None}

    def restore_gradients(self, partial: dict[str, torch.Tensor]) -> None:
        """Go on collecting from what `partial_gradients` gave."""
        self.arm(False)
        self.arm(bool(partial))
        which = "total" if self.replicas is None else "agreed"
        for layer in self.layers:
            if layer.name in partial:
                setattr(layer.module.gradient_sum, which, partial[layer.name].clone())

    def digest(self) -> str:
        """sha256 over the masks of all layers."""
        whole = hashlib.sha256()
        for name, module in self.current().items():
            whole.update(f"{name}:{module.mask_digest()};".encode())
        return whole.hexdigest()


def _collected(layer: ControlledLayer) -> torch.Tensor | None:
    """The gradients of a layer so far: of this process, or what replicas agreed on."""
    collected: GradientSum | None = getattr(layer.current, "gradient_sum", None)
    if collected is None:
        return None
    return collected.total if collected.agreed is None else collected.agreed


def trained_entries(layer: ControlledLayer) -> torch.Tensor:
    """Bool [R, K]: weights that the optimizer moves."""
    reach = layer.module._buffers.get("_reach")
    return layer.mask.clone() if reach is None else layer.mask | reach


def default_replicas() -> Any:
    """All processes, if there are several."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return dist.group.WORLD
    return None

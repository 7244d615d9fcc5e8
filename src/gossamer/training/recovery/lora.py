# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters on layers of any form: the pruned weights stay, a small product is trained.

y = base(x) + (alpha / rank) B A x, with A [rank, K] and B [R, rank]; B starts at 0, so an adapter
changes nothing before its first step. Legend: R outputs, K inputs.
"""

import fnmatch
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from gossamer.errors import InputError, ResourceError
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.surgery import replace_module
from gossamer.ops.training.expansion import gather

Base = nn.Linear | Linear
_DEFAULT_LEFT_OUT = ("head", "lm_head", "classifier")


class LoRALinear(nn.Module):
    """An ordinary, masked or compact Linear, frozen, with an adapter beside it.

    Args:
        base: its parameters no longer require gradients.
        rank: of the adapter.
        alpha: the adapter is scaled by alpha / rank.
    """

    def __init__(self, base: Base, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.rank, self.scale = rank, alpha / rank
        device = next(base.parameters()).device
        self.down_rK = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.up_Rr = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.down_rK, a=5**0.5)
        base.requires_grad_(False)
        self.train(base.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The base layer and the adapter."""
        y: torch.Tensor = self.base(x)
        low = linear(x.to(self.down_rK.dtype), self.down_rK)
        return y + self.scale * linear(low, self.up_Rr).to(y.dtype)

    def change(self) -> torch.Tensor:
        """What the adapter adds to the weight, [R, K]."""
        return self.scale * (self.up_Rr @ self.down_rK).detach()

    @torch.no_grad()
    def merged(self) -> tuple[Base, float]:
        """The base with the adapter added at its kept weights, and what fraction of it was lost.

        The fraction is of the 2-norm: a mask keeps no room for changes of pruned weights. It is 0
        for a layer that is not pruned.
        """
        kept, base = self.change(), self.base
        whole = float(kept.norm())
        if isinstance(base, Linear):
            kept = gather(kept, base.mask())
            base.values.add_(kept.to(base.values.dtype))
            base.refresh()
        else:
            weight = base.weight
            if isinstance(base, MaskedLinear):
                kept, weight = torch.where(base.mask(), kept, 0.0), base.weight_parameter()
            weight.add_(kept.to(weight.dtype))
        base.requires_grad_(True)
        share = float(kept.norm()) / whole if whole else 1.0
        return base, max(1 - share**2, 0.0) ** 0.5


def add_adapters(
    model: nn.Module, *, rank: int = 8, alpha: float = 16.0, targets: Sequence[str] | None = None
) -> list[str]:
    """Freeze `model` and put an adapter beside its Linear layers, in place; their names.

    Args:
        model: with ordinary, masked or compact layers.
        rank: of every adapter.
        alpha: adapters are scaled by alpha / rank.
        targets: globs of layer names; every Linear but heads if left out.
    """
    if type(rank) is not int or rank < 1 or not alpha > 0:
        raise InputError(
            f"adapters: rank must be at least 1 and alpha more than 0; got {rank}, {alpha}."
        )
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Linear) and getattr(module, "is_called", True)
    }
    chosen = {name: module for name, module in found.items() if _is_chosen(name, targets)}
    if not chosen:
        raise InputError(
            f"adapters: {targets or 'the default'} names no Linear layer. The model has"
            f" {', '.join(list(found)[:6]) or 'none'}."
        )
    model.requires_grad_(False)
    for module in chosen.values():
        replace_module(model, module, LoRALinear(module, rank, alpha))
    return list(chosen)


def merge_adapters(model: nn.Module) -> dict[str, float]:
    """Add every adapter to its layer and take it off; name -> fraction of its norm that was lost.

    Zeros stay zeros. To lose nothing, keep the adapters: run the model as it is.
    """
    lost = {}
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            base, lost[name] = module.merged()
            replace_module(model, module, base)
    if not lost:
        raise InputError("adapters: the model has none to merge.")
    model.requires_grad_(True)
    return lost


def register_with_peft(config: Any) -> Any:
    """Tell a `peft.LoraConfig` that compact layers take adapters, too; the config."""
    try:
        from peft.tuners.lora import Linear as PeftLinear
    except ImportError as error:
        raise ResourceError(
            "the package peft is not installed. Install it (pip install peft), or use"
            " gossamer.training.recovery.lora.add_adapters."
        ) from error
    config._register_custom_module({Linear: PeftLinear})
    return config


def _is_chosen(name: str, targets: Sequence[str] | None) -> bool:
    if targets is None:
        return name.rpartition(".")[2] not in _DEFAULT_LEFT_OUT
    return any(fnmatch.fnmatchcase(name, target) for target in targets)

# SPDX-License-Identifier: Apache-2.0
"""Whether a grown model computes the same, and gets the gradients that were foretold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.training.growth.growing import grown_from
from gossamer.training.growth.plan import SlotPlan
from gossamer.training.growth.tensors import grown_tensor

Loss = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class GrowthCheck:
    """What growth changed.

    Attributes:
        loss_before, loss_after: of the same batch, in eval mode.
        gradients: name of each old parameter -> largest difference between its gradient in the
            larger model and the foretold one, over the largest foretold one. Exact without a
            symmetry breaker; with one, how far the copies have been pushed apart. Values of compact
            layers are not compared.
    """

    loss_before: float
    loss_after: float
    gradients: dict[str, float]

    @property
    def difference(self) -> float:
        """Of the losses, relative."""
        return abs(self.loss_after - self.loss_before) / max(abs(self.loss_before), 1e-30)

    def __str__(self) -> str:
        text = (
            f"loss {self.loss_before:.6f} -> {self.loss_after:.6f}"
            f" (relative difference {self.difference:.1e})"
        )
        if self.gradients:
            worst, most = max(self.gradients.items(), key=lambda item: item[1])
            text += f"\ngradients differ from the foretold ones by at most {most:.1e} ({worst})"
        return text


def verify_growth(
    old: nn.Module, new: nn.Module, batch: Any, *, loss: Loss | None = None
) -> GrowthCheck:
    """Compare a model with the one that `gossamer.grow` made of it.

    Args:
        old: as it was when it grew.
        new: what `grow` gave.
        batch: int64 ids, or keyword arguments of the model as a dict.
        loss: loss(model, batch) -> one number; None: the model's own loss if `batch` has labels,
            the next token for logits of a sequence, else half the mean square of the output.

    The gradients of both models are cleared.
    """
    plan = grown_from(new)
    before, after = (_measured(model, batch, loss or default_loss) for model in (old, new))
    found = _compared(old, new, plan)
    for model in (old, new):
        model.zero_grad(set_to_none=True)
    return GrowthCheck(before, after, found)


def default_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss that `verify_growth` takes if none is given."""
    output: Any = model(**batch) if isinstance(batch, dict) else model(batch)
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    names = ("last_hidden_state", "logits", "start_logits")
    name = next((name for name in names if getattr(output, name, None) is not None), None)
    found: torch.Tensor = output if name is None else getattr(output, name)
    ids = next(iter(batch.values())) if isinstance(batch, dict) else batch
    per_token = not ids.is_floating_point() and ids.shape == found.shape[:-1]
    if per_token and name != names[0] and int(ids.max()) < found.shape[-1]:
        return cross_entropy(found[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return found.square().mean() / 2


def _measured(model: nn.Module, batch: Any, loss: Loss) -> float:
    was_training = model.training
    model.eval()
    model.zero_grad(set_to_none=True)
    result = loss(model, batch)
    torch.autograd.backward(result)
    model.train(was_training)
    return float(result.detach())


def _compared(old: nn.Module, new: nn.Module, plan: SlotPlan) -> dict[str, float]:
    """Old parameter -> how far its gradient in the larger model is from the foretold one."""
    gradients = {name: p.grad for name, p in old.named_parameters() if p.grad is not None}
    # Some gradients are 0 but for rounding, such as that of a bias of keys.
    least = 1e-4 * max((float(grad.abs().max()) for grad in gradients.values()), default=1.0)
    found = {}
    for moved, param in new.named_parameters():
        name, is_new = plan.source_of(moved)
        # Values of compact layers have no axes.
        if is_new or param.grad is None or name not in gradients or name not in plan.axes:
            continue
        foretold = grown_tensor(gradients[name], plan.axes[name], plan.factors, "mean")
        if foretold.shape == param.grad.shape:
            scale = max(float(foretold.abs().max()), least)
            found[name] = float((param.grad - foretold).abs().max()) / scale
    return found

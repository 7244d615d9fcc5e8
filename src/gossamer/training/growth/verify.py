# SPDX-License-Identifier: Apache-2.0
"""Whether a grown model computes the same, and gets the gradients that were foretold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.training.growth.growing import grown_from
from gossamer.training.growth.plan import GrowthPlan
from gossamer.training.growth.roles import axes_of, layer_of
from gossamer.training.growth.tensors import grown_tensor

Loss = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class GrowthCheck:
    """What growth changed.

    Attributes:
        loss_before, loss_after: of the same batch, in eval mode.
        gradients: name of each old parameter -> largest difference between its gradient in the
            larger model and the foretold one, over the largest foretold one. Exact without a
            symmetry breaker; with one, how far the copies have been pushed apart.
    """

    loss_before: float
    loss_after: float
    gradients: dict[str, float]

    @property
    def difference(self) -> float:
        """Of the losses, relative."""
        return abs(self.loss_after - self.loss_before) / max(abs(self.loss_before), 1e-30)

    def __str__(self) -> str:
        worst = max(self.gradients, key=lambda name: self.gradients[name], default="")
        lines = [
            f"loss {self.loss_before:.6f} -> {self.loss_after:.6f}"
            f" (relative difference {self.difference:.1e})"
        ]
        if worst:
            lines.append(
                f"gradients differ from the foretold ones by at most {self.gradients[worst]:.1e}"
                f" ({worst})"
            )
        return "\n".join(lines)


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
    before, after = _measured(old, batch, loss), _measured(new, batch, loss)
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
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is not None:
        return cast("torch.Tensor", hidden).square().mean() / 2
    found = [getattr(output, name, None) for name in ("logits", "start_logits")]
    logits: torch.Tensor = next((v for v in found if v is not None), output)
    ids = next(iter(batch.values())) if isinstance(batch, dict) else batch
    per_token = not ids.is_floating_point() and ids.shape == logits.shape[:-1]
    if per_token and int(ids.max()) < logits.shape[-1]:
        return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return logits.square().mean() / 2


def _measured(model: nn.Module, batch: Any, loss: Loss | None) -> float:
    was_training = model.training
    model.eval()
    model.zero_grad(set_to_none=True)
    result = (loss or default_loss)(model, batch)
    torch.autograd.backward(result)
    model.train(was_training)
    return float(result.detach())


def _compared(old: nn.Module, new: nn.Module, plan: GrowthPlan) -> dict[str, float]:
    """Old parameter -> how far its gradient in the larger model is from the foretold one."""
    place = {s.layer: i for i, s in enumerate(plan.sources) if not s.is_new}
    values = {f"{name}.values" for name, _ in sparse_layers(old, "compact")}
    found, new_params = {}, dict(new.named_parameters())
    axes = axes_of(old, plan.anatomy)
    # Some gradients are 0 but for rounding, such as that of a bias of keys.
    sizes = [float(p.grad.abs().max()) for p in old.parameters() if p.grad is not None]
    least = 1e-4 * max(sizes, default=1.0)
    for name, param in old.named_parameters():
        inside = layer_of(name, plan.anatomy)
        moved = name
        if inside is not None:
            moved = f"{plan.anatomy.layers}.{place[inside[0]]}.{inside[1]}"
        grown = new_params.get(moved)
        if name in values or grown is None or grown.grad is None or param.grad is None:
            continue
        foretold = grown_tensor(param.grad, axes[name], plan.factors, "mean")
        if foretold.shape != grown.grad.shape:
            continue
        scale = max(float(foretold.abs().max()), least)
        found[name] = float((grown.grad - foretold).abs().max()) / scale
    return found

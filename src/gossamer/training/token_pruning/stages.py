# SPDX-License-Identifier: Apache-2.0
"""Two stages: thresholds are learned softly, then weights learn with tokens really dropped.

In the soft stage weights and thresholds learn together; in the hard stage thresholds are fixed.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import GossamerError, InputError
from gossamer.nn.tokens import Phase, TokenPrunedEncoder, TokenTrace, token_encoder

Loss = Callable[[nn.Module, Any], torch.Tensor]
OnStep = Callable[[str, int, float, list[float]], None]


@dataclass(frozen=True)
class TokenPlan:
    """How token pruning is trained.

    Attributes:
        penalty: price of keeping all tokens in one layer, in units of the loss; the knob that
            says how many are dropped.
        soft_steps: steps with soft thresholds.
        hard_steps: steps after that with hard, fixed ones.
        lr: of the weights, both stages; linear warm-up over a tenth of a stage, then linear decay.
        threshold_lr: of the thresholds. They are of the order 1 / length, and Adam's steps are as
            long as its rate, so it is not the rate of the weights.
        temperature: of the soft stage at its start.
        final_temperature: at its end, falling geometrically; None for no change.
        weight_decay: of weights that are matrices, never of thresholds.
        clip: largest norm of the gradient of all weights.
        seed: of the order of batches.
    """

    penalty: float = 0.05
    soft_steps: int = 200
    hard_steps: int = 100
    lr: float = 2e-5
    threshold_lr: float = 1e-3
    temperature: float = 1e-3
    final_temperature: float | None = None
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("penalty", "soft_steps", "hard_steps", "lr", "threshold_lr", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                low = 0 if name.endswith("steps") else 0.0
                raise InputError(f"TokenPlan: {name} must be at least {low}, got {value}.")
        for name in ("temperature", "final_temperature", "clip"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"TokenPlan: {name} must be above 0, got {value}.")


@dataclass(frozen=True)
class TokenStageResult:
    """One stage.

    Attributes:
        stage: "soft" or "hard".
        losses: the loss of every step without the penalty.
        kept: per layer, the mean kept fraction over the last tenth of the steps.
        thresholds: at the end.
    """

    stage: Phase
    losses: list[float]
    kept: list[float]
    thresholds: list[float]


def train_token_pruning(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Loss,
    plan: TokenPlan,
    *,
    on_step: OnStep | None = None,
) -> list[TokenStageResult]:
    """Learn thresholds, then weights, in place; the model is left in eval mode and phase "hard".

    Args:
        model: after `add_token_pruning`.
        batches: whatever `loss` takes; gone through in a new order as often as needed.
        loss: `loss(model, batch)`, a scalar.
        plan: stages and rates.
        on_step: called with stage, step, loss and kept fractions after every step.
    """
    encoder = token_encoder(model)
    if not batches:
        raise InputError("train_token_pruning: batches is empty.")
    order = _endless(batches, plan.seed)
    wanted = encoder.thresholds.requires_grad
    results = []
    try:
        if plan.soft_steps:
            results.append(_stage(model, order, loss, plan, "soft", on_step))
        if plan.hard_steps:
            results.append(_stage(model, order, loss, plan, "hard", on_step))
        return results
    finally:
        encoder.thresholds.requires_grad_(wanted)
        encoder.phase = "hard"
        model.eval()


def _stage(
    model: nn.Module,
    order: Iterator[Any],
    loss: Loss,
    plan: TokenPlan,
    stage: Phase,
    on_step: OnStep | None,
) -> TokenStageResult:
    encoder, soft = token_encoder(model), stage == "soft"
    steps = plan.soft_steps if soft else plan.hard_steps
    encoder.phase = stage
    encoder.thresholds.requires_grad_(soft)
    model.train()
    weights, optimizer, schedule = _optimizer(model, encoder, plan, steps)
    losses, kept = [], []
    for step in range(steps):
        if soft:
            share = step / (steps - 1) if steps > 1 else 0
            ratio = (plan.final_temperature or plan.temperature) / plan.temperature
            encoder.temperature = float(plan.temperature * ratio**share)
        with encoder.recording() as traces:
            task = loss(model, next(order))
        fractions = kept_fractions(traces).detach().tolist()
        total = task + plan.penalty * token_penalty(traces) if soft else task
        if not bool(torch.isfinite(total)):
            raise GossamerError(
                f"train_token_pruning: the loss is {float(total.detach())} at step {step} of the"
                f" {stage} stage. Lower lr or threshold_lr, or raise temperature."
            )
        optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, plan.clip)
        optimizer.step()
        schedule.step()
        losses.append(float(task.detach()))
        kept.append(fractions)
        if on_step is not None:
            on_step(stage, step, losses[-1], fractions)
    last = kept[-max(1, steps // 10) :]
    means = [sum(column) / len(last) for column in zip(*last, strict=True)]
    return TokenStageResult(stage, losses, means, encoder.thresholds.detach().tolist())


def _optimizer(
    model: nn.Module, encoder: TokenPrunedEncoder, plan: TokenPlan, steps: int
) -> tuple[list[nn.Parameter], torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    weights = [p for p in model.parameters() if p.requires_grad and p is not encoder.thresholds]
    warm_up = max(1, steps // 10)

    def weights_rate(step: int) -> float:
        return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))

    # Thresholds start far from where they end up: their rate falls late only.
    def thresholds_rate(step: int) -> float:
        return min(1.0, 2 * (steps - step) / steps)

    groups: list[dict[str, Any]] = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": plan.weight_decay},
        {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0},
    ]
    rates: list[Callable[[int], float]] = [weights_rate, weights_rate]
    if encoder.phase == "soft":
        groups.append(
            {"params": [encoder.thresholds], "weight_decay": 0.0, "lr": plan.threshold_lr}
        )
        rates.append(thresholds_rate)
    optimizer = torch.optim.AdamW(groups, lr=plan.lr, fused=True)
    return weights, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates)


def _endless(batches: Sequence[Any], seed: int) -> Iterator[Any]:
    generator = random.Random(seed)  # noqa: S311 (an order, no secret)
    while True:
        yield from generator.sample(list(batches), len(batches))


def kept_fractions(traces: Sequence[TokenTrace]) -> torch.Tensor:
    """Kept tokens (soft: their weights) of all real ones, per layer [L]; differentiable.

    Padding counts neither as kept nor as dropped, so the price does not depend on the batch.
    """
    if not traces:
        raise InputError(
            "kept_fractions: the encoder was not called. Is it part of the model that loss uses?"
        )
    real = sum(int(trace.real.sum()) for trace in traces)
    kept = [torch.stack([keep_BT.sum() for keep_BT in trace.keep]) for trace in traces]
    return torch.stack(kept).sum(dim=0) / real


def token_penalty(traces: Sequence[TokenTrace]) -> torch.Tensor:
    """Sum over layers of the kept fraction, as in the authors' code."""
    return kept_fractions(traces).sum()

# SPDX-License-Identifier: Apache-2.0
"""How a training loop runs: everything a number or a word can say."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from gossamer.errors import InputError
from gossamer.nn.layers import Mode
from gossamer.training.growth import GrowthStep

__all__ = [
    "LOW_PRECISIONS",
    "Compaction",
    "LearningRate",
    "LoopSettings",
    "Shape",
]

Precision = Literal["fp32", "bf16", "fp16"]
LOW_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
Shape = Literal["cosine", "linear", "constant", "wsd"]
Compaction = Literal["auto", "off", "jit", "kernel", "resident", "samo", "slim"]


@dataclass(frozen=True)
class LearningRate:
    """A factor on each group's own learning rate: a linear rise, then a fall to `floor`.

    Attributes:
        shape: how it falls; "constant" does not, "wsd" only in the last part (warm-up, stable,
            decay).
        steps: steps of the whole run.
        warmup: steps of the rise; the first step already has 1 / warmup.
        floor: the factor at the end.
        decay: the last part of the run in which "wsd" falls, linearly.
    """

    shape: Shape
    steps: int
    warmup: int = 0
    floor: float = 0.0
    decay: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= max(self.steps, 0):
            raise InputError(
                f"learning rate: warm-up of {self.warmup} steps does not fit a run of {self.steps}."
            )
        for name in ("floor", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"learning rate: {name} must be in [0, 1], got {getattr(self, name)}."
                )

    def factor(self, step: float) -> float:
        """The factor of step `step`, counted from 0; runs by the clock stand between two steps."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        start = self.warmup
        if self.shape == "wsd":
            start = max(start, round(self.steps * (1 - self.decay)))
        done = min(max((step - start) / max(self.steps - start, 1), 0.0), 1.0)
        left = (1 + math.cos(math.pi * done)) / 2 if self.shape == "cosine" else 1 - done
        return self.floor + (1 - self.floor) * left

    def apply(self, optimizer: torch.optim.Optimizer, step: float, scale: float = 1.0) -> float:
        """Set the learning rate of every group for `step`, times `scale`; that of the first."""
        factor = scale * self.factor(step)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        return float(optimizer.param_groups[0]["lr"])


@dataclass(frozen=True)
class LoopSettings:
    """What the loop does beside forward, backward and step.

    Attributes:
        steps: optimizer steps in the whole run; batches that are skipped do not count.
        rate: the learning rate over the steps.
        minutes: of the run, at most; None: as long as the steps take. Learning rate and evaluations
            then follow the part of the run that is over, by steps or by minutes, and the result
            depends on the machine's speed.
        accumulate: batches whose gradients make one step.
        clip: largest 2-norm of the gradient; None does not clip.
        precision: "bf16" and "fp16" run forward and loss under autocast; in "fp16" the loss is
            scaled, and steps whose gradients overflow are skipped.
        recompute: activation checkpointing.
        compaction: what happens when the masks are final: "auto" compacts and measures the mode of
            each layer, a mode sets it, "off" stays masked. "samo" also holds weights in the 16 bits
            of `precision`, with masters and gradients in float32 beside them. "slim" cuts dead
            channels out of the model instead, which stays dense.
        split_masters: compact values become bf16, with the low bits that make them exact in the
            state of a `gossamer.training.optim` optimizer.
        tokens: activation rows of one batch, for measuring modes.
        grow: when the model becomes larger, in this order.
        step_tokens: tokens of one optimizer step over all processes, for counting compute.
        log_every: steps between two lines of metrics.
        in_train_mode: False trains in eval mode, without dropout and with fixed statistics.
        evaluate_every: steps between two evaluations; 0 evaluates at the end only.
        keep_best: a number of the evaluations, lower is better: the model ends as it was at the
            best one, the start included. None keeps the last state.
        checkpoint_every: steps between two checkpoints; 0 saves at the end only.
        on_full_disk: "stop" ends the run, "go-on" trains on without the checkpoint.
    """

    steps: int
    rate: LearningRate
    minutes: float | None = None
    accumulate: int = 1
    clip: float | None = None
    precision: Precision = "fp32"
    recompute: bool = False
    compaction: Compaction = "auto"
    split_masters: bool = False
    tokens: int = 1
    grow: tuple[GrowthStep, ...] = ()
    step_tokens: int = 0
    log_every: int = 10
    in_train_mode: bool = True
    evaluate_every: int = 0
    keep_best: str | None = None
    checkpoint_every: int = 0
    on_full_disk: Literal["stop", "go-on"] = "stop"

    def __post_init__(self) -> None:
        least = {"steps": 0, "accumulate": 1, "tokens": 1, "log_every": 1, "evaluate_every": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise InputError(f"{name}: must be a whole number from {low}, got {value!r}.")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip: must be more than 0, got {self.clip}. Use None not to clip.")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"minutes: must be more than 0, got {self.minutes}. None: no limit.")
        if self.keep_best is not None and self.compaction != "off":
            raise InputError(
                "keep_best: a state from before compaction has another form; set compaction='off'."
            )
        if self.keep_best is not None and self.grow:
            raise InputError("keep_best: the best state may be of a smaller model than the last.")
        if self.precision not in get_args(Precision):
            raise InputError(f"precision: expected fp32, bf16 or fp16, got {self.precision!r}.")
        if self.compaction == "samo" and self.precision not in LOW_PRECISIONS:
            raise InputError(
                "compaction: samo holds 16-bit weights; set precision to fp16 or bf16, not"
                f" {self.precision!r}."
            )
        if self.compaction == "samo" and self.split_masters:
            raise InputError("compaction: samo has float32 masters; leave split_masters out.")
        if self.compaction == "slim" and (self.split_masters or self.grow):
            raise InputError(
                "compaction: slim trains dense weights of a model that loses channels; leave"
                " split_masters and grow out."
            )
        if self.compaction not in get_args(Compaction):
            raise InputError(
                f"compaction: expected one of {', '.join(get_args(Compaction))}, got"
                f" {self.compaction!r}."
            )

    @property
    def mode(self) -> Mode:
        """The mode that compact layers start with."""
        if self.compaction == "kernel" or self.compaction == "resident":
            return self.compaction
        # "samo" follows once values have their 16 bits.
        return "jit"

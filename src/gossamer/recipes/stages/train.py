# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage says, as data: frozen, closed to unknown keys, free of torch.

Files, user functions and folders are given on the command line, never here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gossamer.recipes.stages.base import (
    MAX_STEPS,
    Found,
    Seed,
    Settings,
    StageSettings,
    as_list,
)
from gossamer.recipes.stages.mesh import Mesh
from gossamer.recipes.stages.schedules import Moment, Schedule, step_of
from gossamer.recipes.stages.train_rules import train_faults

Task = Literal["images", "text", "labelled"]
ModelName = Literal["mlp", "cnn", "gpt", "encoder"]
_Every = Annotated[int, Field(ge=0, le=MAX_STEPS, description="Steps; 0: at the end only.")]


class Architecture(Settings):
    """The model that is built; sizes of inputs and outputs come from the data."""

    name: ModelName
    """mlp and cnn for images, gpt for text, encoder for labels."""
    width: int = Field(default=128, ge=1, le=65536)
    """Features of a layer or channel."""
    layers: int = Field(default=2, ge=1, le=1024)
    """Hidden layers, stages or blocks."""
    heads: int | None = Field(default=None, ge=1, le=1024)
    """Attention heads."""
    context: int | None = Field(default=None, ge=1, le=65536)
    """Tokens of a window."""
    activation: Literal["relu", "gelu", "silu"] | None = None
    """Between the layers of an mlp."""
    tied: bool | None = None
    """gpt: head and embedding share weights."""


class TrainData(Settings):
    """How files become numbers."""

    tokens: Literal["bytes", "bpe"] = "bytes"
    """Of texts: bytes, or byte pairs learned from them."""
    vocabulary: int = Field(default=4096, ge=257, le=2**20)
    """Entries of the bpe."""
    holdout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Of texts: measured on, not trained on."""


class OptimizerSettings(Settings):
    """How weights follow their gradients."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = "adamw"
    """Which optimizer."""
    lr: float = Field(default=1e-3, gt=0.0, le=1e3)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.01, ge=0.0, le=10.0)
    """Of weights; biases and norms have none."""
    betas: Annotated[tuple[float, float], BeforeValidator(as_list)] | None = None
    """adamw, lamb: decay of both moments, such as [0.9, 0.999]."""
    momentum: float | None = Field(default=None, ge=0.0, lt=1.0)
    """sgd, lars."""
    nesterov: bool | None = None
    """sgd."""
    master: Literal["fp32", "split", "split8"] = Field(
        default="fp32",
        description="split: compact weights are bf16, 16 further bits make them exact fp32;"
        " split8: 8 further bits.",
    )
    moments: Literal["fp32", "8bit"] = "fp32"
    """How moments are held."""


class RateSettings(Settings):
    """The learning rate over the run."""

    shape: Literal["cosine", "linear", "constant"] = "cosine"
    """How it falls after the rise."""
    warmup: Moment = 0.05
    """The rise: steps, or a fraction of the run."""
    floor: float = Field(default=0.0, ge=0.0, le=1.0)
    """At the end, as a fraction of the peak."""


class CheckpointSettings(Settings):
    """When the run is saved, and how much of it is kept."""

    every: _Every = 500
    keep: int = Field(default=2, ge=2, le=10_000)
    """Newest ones that stay."""
    asynchronous: bool = False
    """Write while training goes on; holds one copy of the state."""
    on_full_disk: Literal["stop", "go-on"] = "stop"
    """go-on: train without the checkpoint that found no room."""


class EvaluationSettings(Settings):
    """When the quality is measured."""

    every: _Every = 500


class Train(StageSettings):
    """A training run. `steps` or `epochs` says how long."""

    task: Task
    """What is learned: images, text (next token), labelled (texts)."""
    model: Architecture | None = None
    """The model that is built, unless --model gives one."""
    data: TrainData = TrainData()
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Optimizer steps."""
    epochs: float | None = Field(default=None, gt=0.0, le=1e6)
    """Passes over the data, instead of steps."""
    batch: int = Field(default=64, ge=1, le=2**20)
    """Samples of one backward pass."""
    accumulate: int = Field(default=1, ge=1, le=2**20)
    """Backward passes of one step."""
    clip: float | None = Field(default=1.0, gt=0.0)
    """Largest norm of the gradient; null: not clipped."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: products under autocast."""
    recompute: bool = False
    """Activation checkpointing: less memory, a third more time."""
    optimizer: OptimizerSettings = OptimizerSettings()
    rate: RateSettings = RateSettings()
    schedule: Schedule | None = None
    """How zeros come; null: dense, or the masks that are there."""
    compaction: Literal["auto", "off", "jit", "kernel", "resident"] = "auto"
    """Once masks are final: auto measures the mode of each layer, off stays masked."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    log_every: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Steps between two lines."""
    mesh: Mesh | None = None
    """The grid of processes under torchrun; null: one process."""
    seed: Seed = 0
    """Of weights, dropout and the order of data."""

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> Found:
        """Settings that do not go together; fields of sections are dotted."""
        return train_faults(raw)

    def num_steps(self, batches_per_epoch: int) -> int:
        """Optimizer steps of the run on data of so many batches."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 1.0) * batches_per_epoch / self.accumulate))

    def warmup_steps(self, steps: int) -> int:
        """Steps of the rise in a run of `steps`."""
        return min(step_of(self.rate.warmup, steps), steps)

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
from gossamer.recipes.stages.grow import GrowSettings, grow_faults
from gossamer.recipes.stages.mesh import Mesh
from gossamer.recipes.stages.schedules import Moment, Schedule, step_of
from gossamer.recipes.stages.train_rules import train_faults

Task = Literal["images", "text", "labelled"]
ModelName = Literal["mlp", "cnn", "gpt", "encoder"]
_Every = Annotated[int, Field(ge=0, le=MAX_STEPS, description="Steps; 0: at the end only.")]


class Architecture(Settings):
    """The model that is built; sizes of inputs and outputs come from the data."""

    name: ModelName = Field(description="mlp and cnn for images, gpt for text, encoder for labels.")
    width: int = Field(default=128, ge=1, le=65536, description="Features of a layer or channel.")
    layers: int = Field(default=2, ge=1, le=1024, description="Hidden layers, stages or blocks.")
    heads: int | None = Field(default=None, ge=1, le=1024, description="Attention heads.")
    context: int | None = Field(default=None, ge=1, le=65536, description="Tokens of a window.")
    activation: Literal["relu", "gelu", "silu"] | None = Field(
        default=None, description="Between the layers of an mlp."
    )
    tied: bool | None = Field(default=None, description="gpt: head and embedding share weights.")


class TrainData(Settings):
    """How files become numbers."""

    tokens: Literal["bytes", "bpe"] = Field(
        default="bytes", description="Of texts: bytes, or byte pairs learned from them."
    )
    vocabulary: int = Field(default=4096, ge=257, le=2**20, description="Entries of the bpe.")
    holdout: float = Field(
        default=0.1, ge=0.0, lt=1.0, description="Of texts: measured on, not trained on."
    )


class OptimizerSettings(Settings):
    """How weights follow their gradients."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = Field(
        default="adamw", description="Which optimizer."
    )
    lr: float = Field(default=1e-3, gt=0.0, le=1e3, description="Peak learning rate.")
    weight_decay: float = Field(
        default=0.01, ge=0.0, le=10.0, description="Of weights; biases and norms have none."
    )
    betas: Annotated[tuple[float, float], BeforeValidator(as_list)] | None = Field(
        default=None, description="adamw, lamb: decay of both moments, such as [0.9, 0.999]."
    )
    momentum: float | None = Field(default=None, ge=0.0, lt=1.0, description="sgd, lars.")
    nesterov: bool | None = Field(default=None, description="sgd.")
    master: Literal["fp32", "split", "split8"] = Field(
        default="fp32",
        description="split: compact weights are bf16, 16 further bits make them exact fp32;"
        " split8: 8 further bits.",
    )
    moments: Literal["fp32", "8bit"] = Field(default="fp32", description="How moments are held.")


class RateSettings(Settings):
    """The learning rate over the run."""

    shape: Literal["cosine", "linear", "constant", "wsd"] = Field(
        default="cosine",
        description="How it falls after the rise; wsd: stable first, then linearly.",
    )
    warmup: Moment = Field(default=0.05, description="The rise: steps, or a fraction of the run.")
    floor: float = Field(
        default=0.0, ge=0.0, le=1.0, description="At the end, as a fraction of the peak."
    )
    decay: float = Field(
        default=0.2, ge=0.0, le=1.0, description="wsd: the last part of the run, in which it falls."
    )


class CheckpointSettings(Settings):
    """When the run is saved, and how much of it is kept."""

    every: _Every = 500
    keep: int = Field(default=2, ge=2, le=10_000, description="Newest ones that stay.")
    asynchronous: bool = Field(
        default=False, description="Write while training goes on; holds one copy of the state."
    )
    on_full_disk: Literal["stop", "go-on"] = Field(
        default="stop", description="go-on: train without the checkpoint that found no room."
    )


class EvaluationSettings(Settings):
    """When the quality is measured."""

    every: _Every = 500


class Train(StageSettings):
    """A training run. `steps` or `epochs` says how long."""

    task: Task = Field(description="What is learned: images, text (next token), labelled (texts).")
    model: Architecture | None = Field(
        default=None, description="The model that is built, unless --model gives one."
    )
    data: TrainData = TrainData()
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS, description="Optimizer steps.")
    epochs: float | None = Field(
        default=None, gt=0.0, le=1e6, description="Passes over the data, instead of steps."
    )
    batch: int = Field(default=64, ge=1, le=2**20, description="Samples of one backward pass.")
    accumulate: int = Field(default=1, ge=1, le=2**20, description="Backward passes of one step.")
    clip: float | None = Field(
        default=1.0, gt=0.0, description="Largest norm of the gradient; null: not clipped."
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="bf16: products under autocast."
    )
    recompute: bool = Field(
        default=False, description="Activation checkpointing: less memory, a third more time."
    )
    optimizer: OptimizerSettings = OptimizerSettings()
    rate: RateSettings = RateSettings()
    schedule: Schedule | None = Field(
        default=None, description="How zeros come; null: dense, or the masks that are there."
    )
    grow: Annotated[tuple[GrowSettings, ...], BeforeValidator(as_list)] = Field(
        default=(), max_length=16, description="When the model becomes larger, in this order."
    )
    compaction: Literal["auto", "off", "jit", "kernel", "resident"] = Field(
        default="auto",
        description="Once masks are final: auto measures the mode of each layer, off stays masked.",
    )
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    log_every: int = Field(default=10, ge=1, le=MAX_STEPS, description="Steps between two lines.")
    mesh: Mesh | None = Field(
        default=None, description="The grid of processes under torchrun; null: one process."
    )
    seed: Seed = Field(default=0, description="Of weights, dropout and the order of data.")

    @classmethod
    def faults(cls, raw: Mapping[str, Any]) -> Found:
        """Settings that do not go together; fields of sections are dotted."""
        yield from train_faults(raw)
        yield from grow_faults(raw)

    def num_steps(self, batches_per_epoch: int) -> int:
        """Optimizer steps of the run on data of so many batches."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 1.0) * batches_per_epoch / self.accumulate))

    def warmup_steps(self, steps: int) -> int:
        """Steps of the rise in a run of `steps`."""
        return min(step_of(self.rate.warmup, steps), steps)

# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage says, as data: frozen, closed to unknown keys, free of torch.

Files, user functions and folders are given on the command line, never here. Rules over several
fields work on the raw mapping of a file, so that they are told beside the faults of single fields.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gossamer.errors import InputError
from gossamer.recipes.base import (
    MAX_STEPS,
    Batch,
    BelowOne,
    Decay,
    Found,
    Fraction,
    Positive,
    Raw,
    RunSteps,
    Seed,
    Settings,
    Size,
    StageSettings,
    as_list,
)
from gossamer.recipes.phrases import show
from gossamer.recipes.stages.schedules import Moment, Schedule
from gossamer.recipes.stages.train.clicks import ClicksSettings, clicks_faults
from gossamer.recipes.stages.train.experts import ExpertSettings
from gossamer.recipes.stages.train.graph import (
    LINK_MODELS,
    NODE_MODELS,
    GraphSettings,
    graph_faults,
)
from gossamer.recipes.stages.train.grow import GrowSettings, grow_faults
from gossamer.recipes.stages.train.mesh import Mesh
from gossamer.recipes.stages.train.tables import QuantizedTables, quantized_faults
from gossamer.training.distributed import AXES, MeshSizes, split_batch

Task = Literal["images", "text", "labelled", "clicks", "graph"]
ModelName = Literal[
    "mlp",
    "cnn",
    "squeezenet",
    "shift-net",
    "gpt",
    "encoder",
    "dlrm",
    "gcn",
    "sage",
    "gin",
    "gat",
    "gatv2",
    "lightgcn",
]
# Task -> models that fit it; the first one is the default.
_TASK_MODELS = {
    "images": ("mlp", "cnn", "squeezenet", "shift-net"),
    "text": ("gpt",),
    "labelled": ("encoder",),
    "clicks": ("dlrm",),
    "graph": (*NODE_MODELS, *LINK_MODELS),
}
# Section -> setting -> the models or optimizers that have it.
_OWNERS = {
    "model": {
        "heads": ("gpt", "encoder", "gat", "gatv2"),
        "context": ("gpt", "encoder"),
        "activation": ("mlp",),
        "tied": ("gpt",),
        "experts": ("gpt",),
        "layers": ("mlp", "cnn", "shift-net", "gpt", "encoder", *NODE_MODELS, *LINK_MODELS),
        "dropout": NODE_MODELS,
        "bottom": ("dlrm",),
        "top": ("dlrm",),
        "pooling": ("dlrm",),
    },
    "optimizer": {
        "betas": ("adamw", "lamb"),
        "momentum": ("sgd", "lars"),
        "nesterov": ("sgd",),
        "corrected": ("lamb",),
        "normalised": ("lamb",),
        "max_ratio": ("lamb",),
        "max_size": ("lamb",),
        "trust": ("lars",),
        "clipped": ("lars",),
    },
}
# Settings of some optimizers, under the names of their arguments.
OPTIMIZER_OWNERS = _OWNERS["optimizer"]
# Section -> its moments that are steps of the run.
_MOMENTS = {"schedule": ("at", "begin", "end", "last_dense"), "rate": ("warmup",)}
_Sizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65536)], ...],
    BeforeValidator(as_list),
    Field(max_length=64),
]
_Every = Annotated[int, Field(ge=0, le=MAX_STEPS, description="Steps; 0: at the end only.")]


class Architecture(Settings):
    """The model that is built; sizes of inputs and outputs come from the data."""

    name: ModelName
    """mlp, cnn, squeezenet and shift-net for images, gpt for text, encoder for labels, dlrm for
    clicks; else graphs."""
    width: Size = 128
    """Features of a layer, channel or row of a table."""
    layers: int = Field(default=2, ge=1, le=1024)
    """Hidden layers, stages or blocks."""
    heads: int | None = Field(default=None, ge=1, le=1024)
    """Attention heads."""
    context: Size | None = None
    """Tokens of a window."""
    activation: Literal["relu", "gelu", "silu"] | None = None
    """Between the layers of an mlp."""
    tied: bool | None = None
    """gpt: head and embedding share weights."""
    experts: ExpertSettings | None = None
    """gpt: mixtures of experts in the place of some feed-forward parts."""
    bottom: _Sizes | None = None
    """dlrm: inner sizes of the MLP of the numbers, such as [64]."""
    top: _Sizes | None = None
    """dlrm: inner sizes of the MLP behind the interaction, such as [64, 32]."""
    pooling: Literal["sum", "mean"] | None = None
    """dlrm: of several ids of one category."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """gcn, sage, gin, gat, gatv2: of features and attention; null: 0.5."""


class TrainData(Settings):
    """How files become numbers."""

    tokens: Literal["bytes", "bpe"] = "bytes"
    """Of texts: bytes, or byte pairs learned from them."""
    vocabulary: int = Field(default=4096, ge=257, le=2**20)
    """Entries of the bpe."""
    holdout: BelowOne = 0.1
    """Of texts: measured on, not trained on."""
    clicks: ClicksSettings | None = None
    """Of click logs: what the columns are."""
    graph: GraphSettings | None = None
    """Of graphs: what is learned, and how the file is taken."""


class TableOptimizerSettings(Settings):
    """How rows of tables follow their gradients; only rows that a step looked up move."""

    name: Literal["adagrad", "sgd", "adam"] = "adagrad"
    """Which optimizer."""
    lr: Positive = 0.05
    """Peak learning rate."""
    weight_decay: Decay = 0.0
    """Always 0: decay would move every row in every step."""


class OptimizerSettings(Settings):
    """How weights follow their gradients."""

    name: Literal["adamw", "sgd", "lamb", "lars"] = "adamw"
    """Which optimizer."""
    lr: Positive = 1e-3
    """Peak learning rate."""
    weight_decay: Decay = 0.01
    """Of weights; biases and norms have none."""
    betas: Annotated[tuple[float, float], BeforeValidator(as_list)] | None = None
    """adamw, lamb: decay of both moments, such as [0.9, 0.999]."""
    momentum: BelowOne | None = None
    """sgd, lars."""
    nesterov: bool | None = None
    """sgd."""
    corrected: bool | None = None
    """lamb: moments divided by 1 - beta^step, as published; false: as they are."""
    normalised: bool | None = None
    """lamb: gradients divided by the norm of all of them first (NVLAMB)."""
    max_ratio: Positive | None = None
    """lamb: largest rate of a layer; 1 is trust clip."""
    max_size: Positive | None = None
    """lamb: largest norm of a layer that counts."""
    trust: Positive | None = None
    """lars: how far a layer may move, relative to its size; 0.001 if left out."""
    clipped: bool | None = None
    """lars: no layer moves faster than at lr (LARC)."""
    master: Literal["fp32", "split", "split8"] = Field(
        default="fp32",
        description="split: compact weights are bf16, 16 further bits make them exact fp32;"
        " split8: 8 further bits.",
    )
    moments: Literal["fp32", "8bit"] = "fp32"
    """How moments are held."""
    tables: TableOptimizerSettings | None = None
    """dlrm: of its tables, by the rows that a step touches; null: as all other weights."""


class RateSettings(Settings):
    """The learning rate over the run."""

    shape: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """How it falls after the rise; wsd: stable first, then linearly."""
    warmup: Moment = 0.05
    """The rise: steps, or a fraction of the run."""
    floor: Fraction = 0.0
    """At the end, as a fraction of the peak."""
    decay: Fraction = 0.2
    """wsd: the last part of the run, in which it falls."""


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
    keep: Literal["best"] | None = None
    """best: the run ends with the state of its lowest evaluated loss; null: the last one."""


class Train(StageSettings):
    """A training run. `steps` or `epochs` says how long."""

    task: Task
    """What is learned: images, text (next token), labelled (texts), clicks, graph."""
    model: Architecture | None = None
    """The model that is built, unless --model gives one."""
    data: TrainData = TrainData()
    steps: RunSteps | None = None
    """Optimizer steps."""
    epochs: float | None = Field(default=None, gt=0.0, le=1e6)
    """Passes over the data, instead of steps."""
    batch: Batch = 64
    """Samples of one backward pass."""
    accumulate: Batch = 1
    """Backward passes of one step."""
    clip: float | None = Field(default=1.0, gt=0.0)
    """Largest norm of the gradient; null: not clipped."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """bf16, fp16: products under autocast; fp16: with a scaled loss, too."""
    recompute: bool = False
    """Activation checkpointing: less memory, a third more time."""
    optimizer: OptimizerSettings = OptimizerSettings()
    quantize_tables: QuantizedTables | None = None
    """dlrm: its tables are trained in few bits; null: in float32."""
    rate: RateSettings = RateSettings()
    schedule: Schedule | None = None
    """How zeros come; null: dense, or the masks that are there."""
    grow: Annotated[tuple[GrowSettings, ...], BeforeValidator(as_list)] = Field((), max_length=16)
    """When the model becomes larger, in this order."""
    compaction: Literal["auto", "off", "jit", "kernel", "resident", "samo", "slim"] = "auto"
    """Once masks are final: auto measures each layer's mode, off stays masked, slim cuts channels
    out; samo: see memory."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    log_every: RunSteps = 10
    """Steps between two lines."""
    mesh: Mesh | None = None
    """The grid of processes under torchrun; null: one process."""
    seed: Seed = 0
    """Of weights, dropout and the order of data."""

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """Settings that do not go together; fields of sections are dotted."""
        for rule in (
            _length_faults,
            _model_faults,
            _optimizer_faults,
            _moment_faults,
            _mesh_faults,
            _best_faults,
            _samo_faults,
            _slim_faults,
            grow_faults,
            clicks_faults,
            graph_faults,
            quantized_faults,
        ):
            yield from rule(raw)

    def num_steps(self, batches_per_epoch: int) -> int:
        """Optimizer steps of the run on data of so many batches."""
        if self.steps is not None:
            return self.steps
        return max(1, round((self.epochs or 1.0) * batches_per_epoch / self.accumulate))


def _length_faults(train: Raw) -> Found:
    given = [name for name in ("steps", "epochs") if train.get(name) is not None]
    if not given:
        yield "steps", "is missing; say how long to train with steps, or with epochs."
    elif len(given) == 2:
        yield "epochs", "steps is given too; say how long to train with one of them."


def _model_faults(train: Raw) -> Found:
    task, model = train.get("task"), train.get("model")
    if not isinstance(model, Mapping):
        return
    name = model.get("name")
    fitting = _TASK_MODELS.get(task) if isinstance(task, str) else None
    known = {known for names in _TASK_MODELS.values() for known in names}
    if fitting is not None and name in known and name not in fitting:
        yield "model.name", f"{name} does not fit task {task}; expected {' or '.join(fitting)}."
    if name in known:
        yield from _settings_faults("model", model, name)
    width, heads = model.get("width", 128), model.get("heads")
    if type(width) is int and type(heads) is int and heads > 0 and width % heads:
        yield "model.heads", f"{heads} heads do not divide width {width}."


def _optimizer_faults(train: Raw) -> Found:
    settings = train.get("optimizer")
    if not isinstance(settings, Mapping):
        return
    name = settings.get("name", "adamw")
    if name in ("adamw", "sgd", "lamb", "lars"):
        yield from _settings_faults("optimizer", settings, name)
    betas: Any = settings.get("betas")
    numbers = isinstance(betas, list | tuple) and all(isinstance(b, int | float) for b in betas)
    if numbers and not all(0 <= beta < 1 for beta in betas):
        yield "optimizer.betas", f"must be in [0, 1), got {list(betas)}."
    if settings.get("nesterov") is True and not settings.get("momentum"):
        yield "optimizer.nesterov", "needs a momentum."
    yield from _table_faults(settings, train.get("task"))


def _table_faults(settings: Raw, task: Any) -> Found:
    tables = settings.get("tables")
    if not isinstance(tables, Mapping):
        return
    if task != "clicks":
        yield "optimizer.tables", f"belongs to task clicks, not to {task}."
    if tables.get("weight_decay"):
        yield (
            "optimizer.tables.weight_decay",
            "decay of tables is refused: it would move every row in every step. Leave it out.",
        )
    for name, value in (("master", "fp32"), ("moments", "fp32")):
        if settings.get(name, value) != value:
            yield f"optimizer.{name}", f"must be {value} where tables have an optimizer."
    if settings.get("name", "adamw") not in ("adamw", "sgd"):
        yield "optimizer.name", "must be adamw or sgd where tables have an optimizer."


def _best_faults(train: Raw) -> Found:
    evaluation = train.get("evaluation")
    if not isinstance(evaluation, Mapping) or evaluation.get("keep") != "best":
        return
    if train.get("schedule") is not None or train.get("grow"):
        yield "evaluation.keep", "best: the best state may be from before masks or sizes changed."
    if train.get("compaction", "off") != "off":
        yield "evaluation.keep", "best: needs compaction: off; a compact state has another form."


def _samo_faults(train: Raw) -> Found:
    if train.get("compaction") != "samo":
        return
    if train.get("precision", "fp32") == "fp32":
        yield "compaction", "samo: weights have 16 bits; set precision: fp16, or bf16."
    settings: Any = train.get("optimizer")
    settings = settings if isinstance(settings, Mapping) else {}
    if settings.get("master", "fp32") != "fp32":
        yield "optimizer.master", "must be fp32 with compaction: samo; its masters are float32."
    if settings.get("tables") is not None:
        yield "optimizer.tables", "do not go with compaction: samo. Use another compaction."
    mesh: Any = train.get("mesh")
    others = ("pipeline", "shard", "tensor", "expert")
    for axis in others if isinstance(mesh, Mapping) else ():
        if mesh.get(axis, 1) != 1:
            yield f"mesh.{axis}", "compaction: samo goes with data only. Set it to 1."


def _slim_faults(train: Raw) -> Found:
    if train.get("compaction") != "slim":
        return
    settings: Any = train.get("optimizer")
    if isinstance(settings, Mapping) and settings.get("master", "fp32") != "fp32":
        yield "optimizer.master", "must be fp32 with compaction: slim, whose layers are dense."
    if train.get("grow"):
        yield "grow", "does not go with compaction: slim."
    mesh: Any = train.get("mesh")
    for axis in AXES if isinstance(mesh, Mapping) else ():
        if mesh.get(axis, 1) != 1:
            yield f"mesh.{axis}", "compaction: slim is for one process. Set it to 1."


def _settings_faults(section: str, given: Raw, name: Any) -> Found:
    """Settings that the chosen one does not have."""
    for setting, having in _OWNERS[section].items():
        if given.get(setting) is not None and name not in having:
            yield f"{section}.{setting}", f"{name} has none; it belongs to {', '.join(having)}."


def _moment_faults(train: Raw) -> Found:
    steps = train.get("steps")
    if type(steps) is not int:
        return
    for section, names in _MOMENTS.items():
        held: Any = train.get(section)
        for name in names if isinstance(held, Mapping) else ():
            moment = held.get(name)
            if type(moment) is int and moment > steps:
                yield (
                    f"{section}.{name}",
                    f"step {show(moment)} lies past the end of a run of {steps} steps.",
                )


def _mesh_faults(train: Raw) -> Found:
    mesh = train.get("mesh")
    if not isinstance(mesh, Mapping):
        return
    given = {axis: mesh.get(axis, 1) for axis in AXES}
    if not all(type(size) is int and size > 0 for size in given.values()):
        return
    sizes = MeshSizes(**given)
    batch, micro = train.get("batch", 64), mesh.get("microbatches") or 1
    if type(batch) is int and type(micro) is int and batch > 0:
        try:
            split_batch(sizes, batch, micro)
        except InputError as error:
            field, _, text = str(error).partition(": ")
            yield field, text
    model = train.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    if type(layers) is int and sizes.pipeline > layers:
        yield "mesh.pipeline", f"{sizes.pipeline} stages are more than the model's {layers} layers."
    yield from _expert_faults(sizes, model)


def _expert_faults(sizes: MeshSizes, model: Any) -> Found:
    if sizes.expert == 1:
        return
    others = [axis for axis in ("pipeline", "shard", "tensor") if getattr(sizes, axis) > 1]
    if others:
        yield "mesh.expert", f"goes with data only, not with {others[0]}. Set {others[0]} to 1."
    if isinstance(model, Mapping):
        experts: Any = model.get("experts")
        count = experts.get("count", 8) if isinstance(experts, Mapping) else None
        if count is None and "name" in model:
            yield "mesh.expert", "the model has no experts. Give model.experts, or set it to 1."
        elif type(count) is int and count % sizes.expert:
            yield (
                "mesh.expert",
                f"{sizes.expert} ranks cannot share {count} experts equally. Use a number that"
                f" divides {count}.",
            )

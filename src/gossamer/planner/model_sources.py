# SPDX-License-Identifier: Apache-2.0
"""What the command line and `gossamer.plan` may name: shapes, recipes, artifacts, modules."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.huggingface import config_of, example_inputs
from gossamer.io.loading import load_skeleton
from gossamer.planner.mixture_shape import MIXTURE_SHAPES, MixtureModelSizes, mixture_shape
from gossamer.planner.model_shape import NAMED_SHAPES, GPTSizes, ModelShape, gpt_shape
from gossamer.planner.model_tracing import trace_shape
from gossamer.recipes import builtin_names, load_recipe
from gossamer.runs.training import TrainRequest
from gossamer.runs.training.models import build_model, context_of
from gossamer.runs.training.request import architecture_of, make_task, train_stage
from gossamer.training.distributed import TableWire
from gossamer.zoo import GPT, MLP, TinyEncoder
from gossamer.zoo.switch import SwitchGPT

_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_DEFAULT_TOKENS = 512
_BYTES = 256


@dataclass(frozen=True)
class Described:
    """A model and what its source says of the training.

    Attributes:
        shape: of the model.
        batch: samples of a step; None if nothing says it.
        sparsity: of pruned weights; None if nothing says it.
        recompute: as in `StepSpec`.
        table_wire: as in `StepSpec`.
    """

    shape: ModelShape
    batch: int | None = None
    sparsity: float | None = None
    recompute: int | Literal["sqrt"] = 0
    table_wire: TableWire = "full"


def describe(
    source: str | nn.Module | GPTSizes | ModelShape,
    *,
    tokens: int | None = None,
    data: str | None = None,
    overrides: Sequence[str] = (),
) -> Described:
    """The shape behind a name, a path or a module.

    Args:
        source: "gpt3-13b" and the like, a recipe with a train stage, an artifact, a Hugging Face
            directory, a module, or sizes.
        tokens: of a sample, where the source leaves it open.
        data: as in `gossamer train`: sizes of inputs and outputs, for recipes on images or labels.
        overrides: of a recipe, as in `gossamer train --set`.
    """
    if isinstance(source, ModelShape):
        return Described(source)
    if isinstance(source, GPTSizes):
        return Described(gpt_shape(source), recompute="sqrt")
    if isinstance(source, nn.Module):
        return Described(_trace(source, type(source).__name__, tokens))
    if source in NAMED_SHAPES:
        return Described(gpt_shape(NAMED_SHAPES[source], source), recompute="sqrt")
    if source in MIXTURE_SHAPES:
        return Described(mixture_shape(MIXTURE_SHAPES[source], source), recompute="sqrt")
    if source in builtin_names() or Path(source).suffix in (".yaml", ".yml"):
        return _from_recipe(source, data, overrides)
    if not Path(source).exists():
        raise InputError(
            f"{source}: there is no such file, directory or built-in recipe. Expected a recipe, an"
            f" artifact, a Hugging Face directory or one of"
            f" {', '.join([*NAMED_SHAPES, *MIXTURE_SHAPES])}."
        )
    model, density = load_skeleton(source)
    return Described(
        _trace(model, Path(source).resolve().name, tokens),
        sparsity=None if density is None else 1 - density,
    )


def _from_recipe(source: str, data: str | None, overrides: Sequence[str]) -> Described:
    recipe = load_recipe(source, overrides)
    train = train_stage(recipe)
    if train.task in ("clicks", "graph"):
        raise InputError(
            f"{source}: plans are made for models of layers; tables, graphs and their traffic are"
            " not counted yet. 'gossamer train --dry-run' says what one process needs."
        )
    architecture, sizes = architecture_of(train), _sizes(TrainRequest(recipe, data))
    with torch.device("meta"):
        model = build_model(architecture, sizes)
    name = source if source in builtin_names() else Path(source).stem
    is_text = train.task != "images"
    tokens = context_of(architecture) if is_text else 1
    if isinstance(model, SwitchGPT):
        return Described(_of_switch(model, name), batch=train.batch * train.accumulate)
    if is_text:
        example = [tokens]
    elif architecture.name == "mlp":
        example = [sizes["inputs"]]
    else:
        example = [sizes["channels"], sizes["height"], sizes["width"]]
    sparsity, rules = None, {}
    if schedule := train.schedule:
        rules = {"targets": schedule.targets, "ignore": schedule.ignore}
        fixed = schedule.fixed_density
        sparsity = schedule.sparsity if fixed is None else 1 - fixed
    return Described(
        trace_shape(model, example, name=name, tokens=tokens, ids=is_text, **rules),
        batch=train.batch * train.accumulate,
        sparsity=sparsity,
        recompute=int(train.recompute),
        table_wire="full" if train.mesh is None else train.mesh.tables.wire,
    )


def _sizes(request: TrainRequest) -> Mapping[str, Any]:
    train = request.train
    if request.data is not None:
        with tempfile.TemporaryDirectory() as scratch:
            return make_task(request, Path(scratch)).sizes
    if train.task != "text":
        raise InputError(
            f"task {train.task}: sizes of inputs and outputs come from the data. Give them: --data"
            f" FILE, or --data zoo:{train.task}."
        )
    words = train.data
    return {"vocabulary": _BYTES if words.tokens == "bytes" else words.vocabulary}


def _trace(model: nn.Module, name: str, tokens: int | None) -> ModelShape:
    """A module whose inputs are known from its class."""
    if isinstance(model, SwitchGPT):
        return _of_switch(model, name)
    config = config_of(model)
    if config is not None and _reads_tokens(model):
        limit = min((config[key] for key in _POSITIONS if config.get(key)), default=_DEFAULT_TOKENS)
        usual = min(_DEFAULT_TOKENS, limit)
    elif isinstance(model, GPT | TinyEncoder):
        limit = usual = model.context if isinstance(model, GPT) else model.max_tokens
    elif isinstance(model, MLP):
        return trace_shape(model, model.sizes[:1], name=name, tokens=1, ids=False)
    else:
        raise InputError(
            f"{name}: no input can be made up for a {type(model).__name__}; expected a zoo model"
            " or a text model of transformers. Trace it yourself: gossamer.planner.model_tracing."
        )
    length = usual if tokens is None else tokens
    if not 1 <= length <= limit:
        raise InputError(f"tokens: {name} takes 1 to {limit}, got {length}.")
    return trace_shape(model, [length], name=name, tokens=length, ids=True)


def _of_switch(model: SwitchGPT, name: str) -> ModelShape:
    """By formulas: how many tokens an expert sees is not known without numbers."""
    sizes = MixtureModelSizes(
        layers=model.num_layers,
        width=model.width,
        heads=model.num_heads,
        experts=model.num_experts,
        top_k=model.top_k,
        expert_width=model.ffn_width,
        ffn_width=model.ffn_width,
        every=model.every,
        gated=False,
        vocabulary=model.vocab_size,
        tokens=model.context,
        tied=model.tied,
    )
    return mixture_shape(sizes, name)


def _reads_tokens(model: Any) -> bool:
    """Whether a model of transformers takes tokens and nothing else."""
    inputs = example_inputs(model)
    return inputs is not None and set(inputs) == {"input_ids"}

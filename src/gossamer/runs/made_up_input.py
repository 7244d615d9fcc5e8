# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs, so that a whole model can be timed without the user's data."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.io.huggingface import config_of, example_inputs
from gossamer.nn import Linear
from gossamer.nn.operator_graph import GraphModule, OperatorPlan
from gossamer.zoo import MLP, TinyEncoder

# Where a graph leaves sizes open: tokens of a sequence, pixels of an image.
_SEQUENCE, _PIXELS = 128, 224
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")


@dataclass(frozen=True)
class Example:
    """Keyword or positional inputs of a forward, and what they are."""

    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    text: str
    tokens: int

    @property
    def image(self) -> torch.Tensor | None:
        """The only tensor, if it is a batch of images: what `gossamer.compile(example=)` takes."""
        tensors = [*self.args, *self.kwargs.values()]
        return tensors[0] if len(tensors) == 1 and tensors[0].ndim == 4 else None

    @property
    def for_compile(self) -> Any:
        """What `gossamer.compile(example=)` takes: the images, or all arguments."""
        return self.batch if self.image is None else self.image

    @property
    def batch(self) -> Any:
        """What `gossamer.sparsify(data=[...])` takes."""
        return self.kwargs or self.args


def example_input(model: nn.Module, tokens: int) -> Example | None:
    """An input with about `tokens` activation rows, None where none can be made up."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, GraphModule):
        return _graph_example(model, tokens, generator)
    config = config_of(model)
    if config is not None:
        return _transformers_example(model, config, tokens, generator)
    if isinstance(model, TinyEncoder):
        ids_BT, text = _ids(model.vocab_size, tokens, model.max_tokens, generator)
        return Example((ids_BT,), {}, text, ids_BT.numel())
    # A Sequential may start with a Linear.
    first = model
    while isinstance(first, nn.Sequential) and len(first):
        first = first[0]
    if isinstance(model, MLP):
        width = model.sizes[0]
    elif isinstance(first, nn.Linear | Linear):
        width = first.in_features
    else:
        return None
    x_TK = torch.randn(tokens, width, generator=generator)
    return Example((x_TK,), {}, f"{tokens} x {width} random numbers", tokens)


def _transformers_example(
    model: Any, config: dict[str, Any], tokens: int, generator: torch.Generator
) -> Example | None:
    """Tokens, pixels or sound, whatever the class takes; None where nobody knows."""
    limit = min((config[key] for key in _POSITIONS if config.get(key)), default=512)
    # Some families (roberta) reserve two positions.
    length = min(tokens, max(1, limit - 2))
    made = example_inputs(model, length, max(1, tokens // length))
    if made is None:
        return None
    vocab_size = getattr(model.config.get_text_config(), "vocab_size", 1)
    inputs = {
        name: torch.randn(zeros.shape, generator=generator)
        if zeros.is_floating_point()
        else torch.randint(vocab_size, zeros.shape, generator=generator)
        for name, zeros in made.items()
    }
    ids_BT = inputs.get("input_ids")
    if ids_BT is not None and len(inputs) == 1:
        batch, length = ids_BT.shape
        return Example((), inputs, f"{batch} x {length} random token ids", ids_BT.numel())
    text = ", ".join(f"{name} {'x'.join(map(str, t.shape))}" for name, t in inputs.items())
    return Example((), inputs, f"made-up {text}", tokens)


def _ids(
    vocab_size: int, tokens: int, limit: int, generator: torch.Generator
) -> tuple[torch.Tensor, str]:
    length = min(tokens, max(1, limit))
    batch = max(1, tokens // length)
    ids_BT = torch.randint(vocab_size, (batch, length), generator=generator)
    return ids_BT, f"{batch} x {length} random token ids"


def _graph_example(model: GraphModule, tokens: int, generator: torch.Generator) -> Example | None:
    """Inputs of the sizes a graph names; open ones are made up, integers look up known tables."""
    plan = model.plan
    length = min(tokens, _SEQUENCE)
    sizes = {
        1: [1],
        2: [max(1, tokens // length), length],
        3: [1, length, 1],
        4: [1, 3, _PIXELS, _PIXELS],
    }
    made: dict[str, torch.Tensor] = {}
    for number, entry in enumerate(plan.inputs):
        dtype = getattr(torch, entry.dtype)
        if entry.dims is None or len(entry.dims) not in sizes:
            return None
        usual = sizes[len(entry.dims)]
        if dtype.is_floating_point and len(usual) == 2:
            usual = [tokens, 1]
        shape = [u if d is None else d for d, u in zip(entry.dims, usual, strict=True)]
        if dtype.is_floating_point:
            values = torch.randn(shape, generator=generator)
        elif "mask" in entry.name.lower():
            values = torch.ones(shape)
        else:
            top = min(_tables(plan, number, model), default=1)
            values = torch.randint(top, shape, generator=generator)
        made[entry.name] = values.to(dtype)
    text = ", ".join(f"{name} {'x'.join(map(str, t.shape))}" for name, t in made.items())
    return Example((), made, f"made-up {text}", tokens)


def _tables(plan: OperatorPlan, number: int, model: GraphModule) -> list[int]:
    """Rows of the tables that an input of a graph looks up."""
    first = len(plan.inputs)
    return [
        model.constants.get_buffer(plan.constants[step.inputs[0] - first]).shape[0]
        for step in plan.steps
        if step.operator == "Gather" and step.inputs[1] == number
        if first <= step.inputs[0] < first + len(plan.constants)
    ]

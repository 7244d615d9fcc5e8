# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs, so that a whole model can be timed without the user's data."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.io.huggingface import config_of
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
        limit = min((config[key] for key in _POSITIONS if config.get(key)), default=512)
        # Some families (roberta) reserve two positions.
        return _ids("input_ids", int(config["vocab_size"]), tokens, limit - 2, generator)
    if isinstance(model, TinyEncoder):
        return _ids(None, model.vocab_size, tokens, model.max_tokens, generator)
    width = model.sizes[0] if isinstance(model, MLP) else _first_width(model)
    if width is None:
        return None
    x_TK = torch.randn(tokens, width, generator=generator)
    return Example((x_TK,), {}, f"{tokens} x {width} random numbers", tokens)


def _ids(
    name: str | None, vocab_size: int, tokens: int, limit: int, generator: torch.Generator
) -> Example:
    length = min(tokens, max(1, limit))
    batch = max(1, tokens // length)
    ids_BT = torch.randint(vocab_size, (batch, length), generator=generator)
    text = f"{batch} x {length} random token ids"
    if name is None:
        return Example((ids_BT,), {}, text, batch * length)
    return Example((), {name: ids_BT}, text, batch * length)


def _first_width(model: nn.Module) -> int | None:
    """Input size of a Sequential that starts with a Linear."""
    while isinstance(model, nn.Sequential) and len(model):
        model = model[0]
    return model.in_features if isinstance(model, nn.Linear | Linear) else None


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
        if dtype.is_floating_point:
            usual = [tokens, 1] if len(entry.dims) == 2 else usual
            shape = [u if d is None else d for d, u in zip(entry.dims, usual, strict=True)]
            made[entry.name] = torch.randn(shape, generator=generator).to(dtype)
            continue
        shape = [u if d is None else d for d, u in zip(entry.dims, usual, strict=True)]
        if "mask" in entry.name.lower():
            made[entry.name] = torch.ones(shape, dtype=dtype)
        else:
            top = min(_tables(plan, number, model), default=1)
            made[entry.name] = torch.randint(top, shape, generator=generator).to(dtype)
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

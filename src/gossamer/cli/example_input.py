# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs, so that a whole model can be timed without the user's data."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.io.transformers_models import config_of
from gossamer.nn import Linear
from gossamer.zoo import MLP, TinyEncoder

_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")


@dataclass(frozen=True)
class Example:
    """Keyword or positional inputs of a forward, and what they are."""

    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    text: str
    tokens: int

    @property
    def batch(self) -> Any:
        """What `gossamer.sparsify(data=[...])` takes."""
        return self.kwargs or self.args


def example_input(model: nn.Module, tokens: int) -> Example | None:
    """An input with about `tokens` activation rows, None where none can be made up."""
    generator = torch.Generator().manual_seed(0)
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

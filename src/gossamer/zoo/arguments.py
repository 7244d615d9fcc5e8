# SPDX-License-Identifier: Apache-2.0
"""Constructor arguments, which for a saved model come from an untrusted manifest, are checked.

`TokenModel` is what the models of tokens share.
"""

import inspect
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from gossamer.errors import InputError

# What a manifest can hold for one argument.
ZooArgs = dict[str, bool | int | float | str | tuple[int, ...] | None]

MAX_SIZE = 2**31 - 1
MAX_LAYERS = 1024


def check_size(where: str, value: int, *, low: int = 1, high: int = MAX_SIZE) -> int:
    """`value` if it is an integer in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{where}: must be an integer in [{low}, {high}], got {value!r}.")
    return value


def check_choice(where: str, value: str, choices: Iterable[str]) -> str:
    """`value` if it is one of `choices`."""
    names = list(choices)
    if value not in names:
        raise InputError(f"{where}: must be one of {', '.join(names)}; got {value!r}.")
    return value


class TokenModel(nn.Module):
    """A transformer that begins with embeddings of tokens and positions.

    Attributes:
        limit: the argument that says how many tokens a sequence has at most.
    """

    limit: ClassVar[str]
    vocab_size: int
    width: int
    num_heads: int
    num_layers: int
    ffn_width: int

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        who = type(self).__name__
        for name, size in sizes.items():
            # A model without blocks can grow some.
            low = 0 if name in ("num_classes", "num_layers") else 1
            high = MAX_LAYERS if name == "num_layers" else MAX_SIZE
            setattr(self, name, check_size(f"{who}: {name}", size, low=low, high=high))
        if self.width % self.num_heads:
            raise InputError(
                f"{who}: width {self.width} must be divisible by num_heads {self.num_heads}."
            )
        self.tokens = nn.Embedding(self.vocab_size, self.width)
        self.positions = nn.Embedding(sizes[self.limit], self.width)

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        names = inspect.signature(type(self)).parameters
        # Whether activations are computed again is a setting of the run.
        return {name: getattr(self, name) for name in names if name != "recompute"}

    def embed(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """[B, T, D]; what is [B, T, D] already is taken as embedded."""
        if ids_BT.is_floating_point():
            return ids_BT
        num_tokens, most = ids_BT.shape[-1], getattr(self, self.limit)
        if num_tokens > most:
            raise InputError(
                f"{type(self).__name__}: at most {most} tokens, got {num_tokens}. Cut the input or"
                f" build the model with a larger {self.limit}."
            )
        where = torch.arange(num_tokens, device=ids_BT.device)
        x_BTD: torch.Tensor = self.tokens(ids_BT) + self.positions(where)
        return x_BTD

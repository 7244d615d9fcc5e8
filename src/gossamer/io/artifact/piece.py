# SPDX-License-Identifier: Apache-2.0
"""One tensor to store, and the names of its arrays in a file."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gossamer.io.artifact.manifest import TensorEntry

SEPARATOR = "::"
MASK_ARRAY = "mask_bits"

Arrays = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Piece:
    """One tensor to store: its bytes by formula, its arrays when asked, its manifest entry.

    `entry` is asked for after `arrays`.
    """

    name: str
    num_bytes: int
    arrays: Callable[[], Arrays]
    entry: Callable[[str, tuple[str, ...]], TensorEntry]


def array_key(name: str, array: str) -> str:
    """The key of one packed array in a file: `<tensor>::<array>`."""
    return f"{name}{SEPARATOR}{array}"

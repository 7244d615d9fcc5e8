# SPDX-License-Identifier: Apache-2.0
"""One layer on its way to its packed form: what `compile` knows of it, and what may come back."""

from dataclasses import dataclass
from typing import Any

import torch

from gossamer.formats import SparseMatrix
from gossamer.nn.input_shapes import Shapes
from gossamer.running.layers.choose import Chooser
from gossamer.running.layers.packed import Choice


@dataclass(frozen=True)
class Job:
    """A layer that could gain from its zeros.

    Attributes:
        name: of the layer, for messages.
        layer: in any form.
        matrix: its kept weights as float32.
        dtype: of the layer itself; 16-bit ones are computed in float32.
        counts: token counts to choose for.
        shapes: of the inputs of layers, as far as an example has shown them.
        chooser: decides dense or sparse.
        precision: the lowest that kernels may compute in.
    """

    name: str
    layer: Any
    matrix: SparseMatrix
    dtype: torch.dtype
    counts: tuple[int, ...]
    shapes: Shapes
    chooser: Chooser
    precision: str


@dataclass(frozen=True)
class StaysDense:
    """A layer that is not packed: dense measured faster, or `reason` says why it cannot be."""

    choices: tuple[Choice, ...] = ()
    reason: str = ""

# SPDX-License-Identifier: Apache-2.0
"""The plug-in axes: which zeros are legal, which weights matter, how they are stored and run.

Sparsifiers say which entries of activations and gradients stay; operators are what computes them.

Only names registered here can appear in a recipe or a file; nothing is ever imported by name.
"""

from collections.abc import Callable
from typing import Literal

import torch

from gossamer.formats import FORMATS, Format, SparseMatrix
from gossamer.ops import Kernel, Problem, Run, kernel_list
from gossamer.ops.operators import TensorFormat
from gossamer.ops.operators import add_operator as operator
from gossamer.ops.operators.compressed import TENSOR_FORMATS
from gossamer.ops.operators.kernels import add_backward as backward
from gossamer.ops.operators.kernels import add_forward as forward
from gossamer.ops.sparsifiers import by_function
from gossamer.patterns import Pattern
from gossamer.patterns.text import PATTERNS
from gossamer.pruning import register_scorer as scorer

__all__ = ["backward", "format", "forward", "op", "operator", "pattern", "scorer", "sparsifier"]

Mask = Callable[..., torch.Tensor]
Pack = Callable[[SparseMatrix], Run]


def pattern(name: str, parse: Callable[[str], Pattern]) -> None:
    """Make `name` and `name:...` legal pattern texts; `parse` reads the whole text."""
    PATTERNS.add(name, parse)


def format(name: str, implementation: Format | TensorFormat) -> None:
    """Add a format: of weights in files, or of tensors that a model computes.

    `gossamer.testing.check_format(name)` says whether one for files is sound.
    """
    if isinstance(implementation, TensorFormat):
        TENSOR_FORMATS.add(name, implementation)
    else:
        FORMATS.add(name, implementation)


def sparsifier(
    name: str,
    scope: Literal["streaming", "blocking", "materialising"] = "materialising",
    *,
    block: int = 1,
    is_random: bool = False,
) -> Callable[[Mask], Mask]:
    """Decorate the function that says which entries of an activation or a gradient stay.

    `name:0.5` calls it with the tensor and 0.5; it returns a bool mask of the same shape, True =
    kept. `gossamer.testing.check_sparsifier("name:0.5")` says whether it is sound.

    Args:
        name: the part of the text before its numbers.
        scope: what the function must see at a time: single entries, blocks of `block` consecutive
            ones, or the whole tensor.
        block: entries of a block; divides the last dimension.
        is_random: whether two calls may give two masks.
    """

    def add(function: Mask) -> Mask:
        by_function(name, function, scope, block, is_random)
        return function

    return add


def op(
    operation: str,
    name: str,
    accepts: Callable[[Problem], bool] = lambda problem: True,
    precision: str = "fp32",
) -> Callable[[Pack], Pack]:
    """Decorate the function that packs one weight for a kernel of `operation`.

    It gets a SparseMatrix, packs what it needs once and returns `run(x, bias, activation) -> y`.
    `compile` measures it beside the other kernels wherever `accepts` says that it can run; so does
    the native decoder, for a run that is a `gossamer.ops.linear.PackedWeight`. The native calls of
    whole encoders and networks take weights of their own, which no run is: `explain` names the
    kernel as not usable there, and it runs where these do not.
    """

    def add(pack: Pack) -> Pack:
        engines = {"decoder": lambda problem: pack(problem.matrix)}
        kernel = Kernel.of_matrix(name, pack, accepts, precision, is_plug_in=True, engines=engines)
        kernel_list(operation).add(name, kernel)
        return pack

    return add

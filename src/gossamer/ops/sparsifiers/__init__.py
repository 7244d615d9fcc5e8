# SPDX-License-Identifier: Apache-2.0
"""Which entries of a tensor that a model computes stay: activations, and gradients on their way.

`parse_sparsifier("threshold:0.1")` makes a `Sparsifier` of its text, and `sparsify` applies it:
each entry stays as it is or becomes zero, the shape never changes. Its `scope` says what it must
see at a time: single entries (streaming), blocks (blocking) or the whole tensor (materialising).
Streaming ones can work inside the operator that computes the tensor.

`SPARSIFIERS` has all of them by name; a pattern with a density of its own, as 2:4, is one too.
`by_function` makes one of a function.
"""

from gossamer.ops.sparsifiers.applying import pass_gradient_through, sparsify, sparsify_gradient
from gossamer.ops.sparsifiers.base import Sparsifier
from gossamer.ops.sparsifiers.plug_ins import by_function
from gossamer.ops.sparsifiers.text import SPARSIFIERS, parse_sparsifier

__all__ = [
    "SPARSIFIERS",
    "Sparsifier",
    "by_function",
    "parse_sparsifier",
    "pass_gradient_through",
    "sparsify",
    "sparsify_gradient",
]

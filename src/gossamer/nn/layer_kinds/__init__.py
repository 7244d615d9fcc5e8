# SPDX-License-Identifier: Apache-2.0
"""The table of layer kinds, and what can be asked of a layer in any form.

A kind is a row of `KINDS`. Everybody else asks here, or a layer itself (`SparseLayer`), and never
which class a layer is. The way between the forms is `nn/forms/`.
"""

from gossamer.nn.layer_kinds.table import (
    KINDS,
    density_of,
    form_of,
    kind_name,
    kind_of,
    matrix_of,
    shape_of,
    sparse_layers,
    title_of,
    weight_of,
)

__all__ = [
    "KINDS",
    "density_of",
    "form_of",
    "kind_name",
    "kind_of",
    "matrix_of",
    "shape_of",
    "sparse_layers",
    "title_of",
    "weight_of",
]

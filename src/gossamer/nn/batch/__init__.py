# SPDX-License-Identifier: Apache-2.0
"""One call of a model: what goes in, what comes out, and what its layers are given.

`Batch` is a call as data; `input_shapes` says which sizes of images reach the layers.
"""

from gossamer.nn.batch.call import (
    Batch,
    Shapes,
    call_on_batch,
    first_tensor,
    input_shapes,
    named_tensor,
    rows_of,
)

__all__ = [
    "Batch",
    "Shapes",
    "call_on_batch",
    "first_tensor",
    "input_shapes",
    "named_tensor",
    "rows_of",
]

# SPDX-License-Identifier: Apache-2.0
"""Norms of a layer, over its kept entries only."""

import torch


def kept_norm(vector: torch.Tensor, kept: torch.Tensor | None) -> float:
    """The 2-norm of the entries where `kept` (None: everywhere), summed in float64.

    In float64 the order of the sum does not show: compact values and a masked weight with zeros
    between them have the same norm.
    """
    if kept is not None:
        vector = torch.where(kept, vector, 0.0)
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))

# SPDX-License-Identifier: Apache-2.0
"""The term that makes thresholds rise: tokens cost something in every layer.

Legend: B batch, T tokens, L layers.
"""

from collections.abc import Sequence

import torch

from gossamer.errors import InputError
from gossamer.nn.token_pruning import TokenTrace


def kept_fractions(traces: Sequence[TokenTrace]) -> torch.Tensor:
    """Kept tokens (soft: their weights) of all real ones, per layer [L]; differentiable.

    Padding counts neither as kept nor as dropped, so the price does not depend on the batch.
    """
    if not traces:
        raise InputError(
            "kept_fractions: the encoder was not called. Is it part of the model that loss uses?"
        )
    real = sum(int(trace.real.sum()) for trace in traces)
    kept = [torch.stack([keep_BT.sum() for keep_BT in trace.keep]) for trace in traces]
    return torch.stack(kept).sum(dim=0) / real


def token_penalty(traces: Sequence[TokenTrace]) -> torch.Tensor:
    """Sum over layers of the kept fraction, as in the authors' code."""
    return kept_fractions(traces).sum()

# SPDX-License-Identifier: Apache-2.0
"""Whether a rewritten model still computes the same."""

from typing import Any

import torch

# A rewritten network rounds differently; a wrong rewriting changes the result by far more.
_TOLERANCE = 1e-3


def same_output(first: Any, second: Any) -> bool:
    """Whether two outputs agree within rounding: tensors, or tuples, lists and dicts of them."""
    if isinstance(first, torch.Tensor):
        scale = float(first.abs().max()) if first.numel() else 0.0
        return first.shape == second.shape and torch.allclose(
            first, second, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True
        )
    if isinstance(first, dict):
        return all(same_output(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return all(same_output(a, b) for a, b in zip(first, second, strict=True))
    return True

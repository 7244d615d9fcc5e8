# SPDX-License-Identifier: Apache-2.0
"""A model's state as digests: what a golden file must load to, whatever holds it in memory."""

import hashlib
from typing import Any

import torch
from torch import nn

from gossamer.nn.layers import CompactWeight, MaskedWeight


def state_of(model: nn.Module) -> dict[str, Any]:
    """Per layer with a mask its form, pattern, mask and weight; every tensor of the state dict."""
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, MaskedWeight | CompactWeight):
            layers[name] = {
                "form": "compact" if isinstance(module, CompactWeight) else "masked",
                "pattern": str(module.pattern),
                "kept": int(module.mask().sum()),
                "mask": _digest(module.mask()),
                "weight": _digest(module.to_dense().weight),
            }
    tensors = {
        name: [str(tensor.dtype), list(tensor.shape), _digest(tensor)]
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    return {"layers": layers, "tensors": tensors}


def _digest(tensor: torch.Tensor) -> str:
    """The first half of the SHA-256 of its bytes."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:32]

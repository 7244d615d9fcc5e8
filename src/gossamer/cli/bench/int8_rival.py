# SPDX-License-Identifier: Apache-2.0
"""Dense int8, the rival that a sparse model has to beat: torch's dynamic quantization."""

import copy
import warnings

import torch
from torch import nn

NAME = "dense int8"
NOTE = (
    "dense int8 is torch's dynamic quantization of all Linears; its bytes are counted (one per"
    " weight), not written."
)


def dense_int8(model: nn.Module) -> nn.Module | None:
    """A copy with int8 Linears; None where this torch or CPU cannot do it."""
    quantize = getattr(getattr(torch.ao, "quantization", None), "quantize_dynamic", None)
    if quantize is None:
        return None
    with warnings.catch_warnings():
        # torch announces that this moves to another package; here it is only a yardstick.
        warnings.simplefilter("ignore")
        try:
            made: nn.Module = quantize(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
        except (RuntimeError, NotImplementedError):
            return None
    return made.eval()


def int8_bytes(model: nn.Module) -> int:
    """Bytes of a dense model whose Linear weights take one byte each, and one scale per row."""
    total = sum(param.numel() * param.element_size() for param in model.parameters())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = module.weight
            total -= weight.numel() * (weight.element_size() - 1)
            total += module.out_features * weight.element_size()
    return total

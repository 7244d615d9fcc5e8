# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model compute attention: whoever times or counts it asks here."""

from torch import nn

from gossamer.nn.attention.linformer import LinformerAttention
from gossamer.nn.attention.lsh import LSHAttention
from gossamer.nn.attention.marks import takes_mark
from gossamer.nn.attention.sparse import SparseAttention

__all__ = ["attention_parts"]

_LAYERS = (nn.MultiheadAttention, SparseAttention, LSHAttention, LinformerAttention)


def attention_parts(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that compute scores by name, projections inside them included; the outermost ones."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not isinstance(module, _LAYERS) and not takes_mark(module):
            continue
        if not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = module
    return found

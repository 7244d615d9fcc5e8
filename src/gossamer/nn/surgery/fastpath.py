# SPDX-License-Identifier: Apache-2.0
"""Keep torch's fused transformer inference away from layers whose weight it would misread.

nn.TransformerEncoderLayer in eval mode hands `linear1.weight`, `linear2.weight` and
`self_attn.out_proj.weight` to one fused kernel and never calls the layers: a masked weight would
be read without its mask, a compact or packed one does not exist.
"""

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

# Why the output projection of an attention of torch is never packed.
READ_BY_ATTENTION = "nn.MultiheadAttention reads its weight directly and never calls the layer"


def attention_outputs(model: nn.Module) -> set[int]:
    """Ids of the `out_proj` layers of nn.MultiheadAttention, which are never called."""
    return {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}


def disable_fast_paths(model: nn.Module) -> list[str]:
    """Switch the fused path off in encoders that hold replaced layers; the names of those layers.

    Only these instances change, through the two flags torch checks itself
    (`activation_relu_or_gelu`, `use_nested_tensor`); results differ by rounding only.
    """
    changed = []
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and not _is_stock(module):
            module.activation_relu_or_gelu = 0
            changed.append(name)
        elif isinstance(module, nn.TransformerEncoder):
            layers = (m for m in module.modules() if isinstance(m, nn.TransformerEncoderLayer))
            if not all(map(_is_stock, layers)):
                module.use_nested_tensor = False
    return changed


def _is_stock(layer: nn.TransformerEncoderLayer) -> bool:
    return (
        type(layer.linear1) is nn.Linear
        and type(layer.linear2) is nn.Linear
        and type(layer.self_attn.out_proj) in (nn.Linear, NonDynamicallyQuantizableLinear)
    )

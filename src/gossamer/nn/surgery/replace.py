# SPDX-License-Identifier: Apache-2.0
"""Put one module in the place of another, everywhere it is registered.

torch's fused transformer inference is kept away from layers whose weight it would misread:
nn.TransformerEncoderLayer in eval mode hands `linear1.weight`, `linear2.weight` and
`self_attn.out_proj.weight` to one fused kernel and never calls the layers. A masked weight would
be read without its mask, a compact or packed one does not exist.
"""

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from gossamer.errors import InputError
from gossamer.nn.intermediate import carry_rules

_HOOK_TABLES = (
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Register `new` wherever `old` is registered below `model`; shared modules stay shared."""
    if model is old:
        raise InputError(
            f"the model is itself one {type(old).__name__} and cannot be replaced in place."
            " Wrap it: model = torch.nn.Sequential(model)."
        )
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new


def submodule_at(root: nn.Module, path: str) -> nn.Module:
    """The module at the dotted `path` below `root`, made on the way where it is not there."""
    module = root
    for key in path.split(".") if path else []:
        child = module._modules.get(key)
        if child is None:
            child = nn.Module()
            module.add_module(key, child)
        module = child
    return module


def inherit_hooks(new: nn.Module, old: nn.Module) -> None:
    """Give `new` the mode and the call hooks of `old`; handles that users hold keep working."""
    carry_rules(new, old)
    new.training = old.training
    for table in _HOOK_TABLES:
        new.__dict__[table] = old.__dict__[table]


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
        and type(layer.self_attn) is nn.MultiheadAttention
        and type(layer.self_attn.out_proj) in (nn.Linear, NonDynamicallyQuantizableLinear)
    )

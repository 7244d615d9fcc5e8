"""What people hang on a model: hooks, wrappers, parametrizations, subclasses, odd inputs.

Each oddity changes a drawn model in place before anything is pruned. The oracle is a copy of that
very model, so whatever the oddity does to the result, the pruned forms must do as well.
"""

import random
import types
from collections.abc import Callable

import torch
import torch.nn.utils.prune
from architectures import Drawn
from torch import nn
from torch.nn.utils import parametrizations

Oddity = Callable[[random.Random, Drawn], None]


def _some_layer(draw: random.Random, drawn: Drawn) -> nn.Module:
    layers = [
        (name, module)
        for name, module in drawn.model.named_modules()
        if name and isinstance(module, nn.Linear | nn.Conv2d) and not name.endswith("out_proj")
    ]
    name, layer = draw.choice(layers)
    drawn.touched.append(name)
    return layer


def _some_module(draw: random.Random, model: nn.Module) -> nn.Module:
    return draw.choice([m for m in model.modules() if not isinstance(m, nn.MultiheadAttention)])


# Hooks are functions of this module: a deep copy of the model keeps them, and gives them the copy.
def _add_half(module: nn.Module, args: object, output: object) -> object:
    return output + 0.5 if isinstance(output, torch.Tensor) else None


def _add_half_with_kwargs(
    module: nn.Module, args: object, kwargs: object, output: object
) -> object:
    return output + 0.5 if isinstance(output, torch.Tensor) else None


def _double_input(module: nn.Module, args: tuple[object, ...]) -> object:
    first = args[0]
    if isinstance(first, torch.Tensor) and first.is_floating_point():
        return (first * 2, *args[1:])
    return None


def forward_hook(draw: random.Random, drawn: Drawn) -> None:
    """A forward hook that changes the output of a layer."""
    _some_layer(draw, drawn).register_forward_hook(_add_half)


def forward_hook_anywhere(draw: random.Random, drawn: Drawn) -> None:
    """The same on any module, containers and norms included."""
    _some_module(draw, drawn.model).register_forward_hook(_add_half)


def forward_hook_with_kwargs(draw: random.Random, drawn: Drawn) -> None:
    """A hook of the newer form."""
    layer = _some_layer(draw, drawn)
    layer.register_forward_hook(_add_half_with_kwargs, with_kwargs=True, always_call=True)


def pre_hook(draw: random.Random, drawn: Drawn) -> None:
    """A forward pre-hook that changes the input of a layer."""
    _some_layer(draw, drawn).register_forward_pre_hook(_double_input)


def pre_hook_anywhere(draw: random.Random, drawn: Drawn) -> None:
    """The same on any module."""
    _some_module(draw, drawn.model).register_forward_pre_hook(_double_input)


def _shifted_forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return type(self).forward(self, x) + 0.5


def own_forward(draw: random.Random, drawn: Drawn) -> None:
    """`layer.forward = ...` on one instance."""
    layer = _some_layer(draw, drawn)
    layer.forward = types.MethodType(_shifted_forward, layer)


class ShiftedLinear(nn.Linear):
    """A user's subclass with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.5


class ShiftedConv2d(nn.Conv2d):
    """The same for a convolution."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.5


def subclass(draw: random.Random, drawn: Drawn) -> None:
    """A layer of a user's class."""
    layer = _some_layer(draw, drawn)
    layer.__class__ = ShiftedLinear if isinstance(layer, nn.Linear) else ShiftedConv2d


class Wrapper(nn.Module):
    """A user's module around a layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @property
    def weight(self) -> torch.Tensor:
        return self.inner.weight

    @property
    def bias(self) -> torch.Tensor:
        return self.inner.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


def wrapped(draw: random.Random, drawn: Drawn) -> None:
    """A layer inside a wrapper that has its own `weight`."""
    layer = _some_layer(draw, drawn)
    parent, _, key = drawn.touched[-1].rpartition(".")
    setattr(drawn.model.get_submodule(parent), key, Wrapper(layer))
    drawn.touched[-1] += ".inner"


def weight_norm(draw: random.Random, drawn: Drawn) -> None:
    """A parametrized weight."""
    parametrizations.weight_norm(_some_layer(draw, drawn))


def pruned_by_torch(draw: random.Random, drawn: Drawn) -> None:
    """torch.nn.utils.prune: weight_orig, weight_mask and a pre-hook."""
    layer = _some_layer(draw, drawn)
    torch.nn.utils.prune.l1_unstructured(layer, "weight", 0.75)


def user_buffer(draw: random.Random, drawn: Drawn) -> None:
    """A buffer that a user registered on a layer and a hook reads."""
    layer = _some_layer(draw, drawn)
    layer.register_buffer("gain", torch.tensor(3.0))
    layer.register_forward_hook(_times_gain)


def _times_gain(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return output * module.gain


def frozen(draw: random.Random, drawn: Drawn) -> None:
    """Parameters that take no gradient."""
    drawn.model.requires_grad_(False)


def noncontiguous_input(draw: random.Random, drawn: Drawn) -> None:
    """A transposed view of the input's memory."""
    x = drawn.inputs[0]
    if x.ndim >= 2:
        held = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        drawn.inputs = (held, *drawn.inputs[1:])


def expanded_input(draw: random.Random, drawn: Drawn) -> None:
    """Rows that share one memory."""
    x = drawn.inputs[0]
    if x.ndim >= 2 and x.shape[0]:
        drawn.inputs = (x[:1].expand(x.shape), *drawn.inputs[1:])


def channels_last(draw: random.Random, drawn: Drawn) -> None:
    """Images in the other memory order."""
    x = drawn.inputs[0]
    if x.ndim == 4:
        drawn.inputs = (x.to(memory_format=torch.channels_last), *drawn.inputs[1:])


def negated_view(draw: random.Random, drawn: Drawn) -> None:
    """A tensor whose sign is a flag."""
    x = drawn.inputs[0]
    if x.is_floating_point():
        drawn.inputs = (torch._neg_view(x), *drawn.inputs[1:])


def half_precision(draw: random.Random, drawn: Drawn) -> None:
    """A bf16 checkpoint."""
    drawn.model.bfloat16()
    drawn.inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in drawn.inputs)


def double_precision(draw: random.Random, drawn: Drawn) -> None:
    """A float64 model."""
    drawn.model.double()
    drawn.inputs = tuple(x.double() if x.is_floating_point() else x for x in drawn.inputs)


def large_values(draw: random.Random, drawn: Drawn) -> None:
    """Inputs of many magnitudes."""
    x = drawn.inputs[0]
    if x.is_floating_point():
        drawn.inputs = (x * 10.0 ** draw.randint(-6, 6), *drawn.inputs[1:])


ODDITIES: tuple[Oddity, ...] = (
    forward_hook,
    forward_hook_anywhere,
    forward_hook_with_kwargs,
    pre_hook,
    pre_hook_anywhere,
    own_forward,
    subclass,
    wrapped,
    weight_norm,
    pruned_by_torch,
    user_buffer,
    frozen,
    noncontiguous_input,
    expanded_input,
    channels_last,
    negated_view,
    half_precision,
    double_precision,
    large_values,
)

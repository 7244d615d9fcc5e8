# SPDX-License-Identifier: Apache-2.0
"""What layers without a dense weight answer when a model looks at `.weight` and its like.

`HasNoWeight` gives a layer a `WeightStandIn`, which knows dtype, device and shape; computing with
it is an error with advice, a `Refusal`. `ConvAttributes` are what models read of a convolution.

Models read `layer.weight.dtype` to cast their inputs (T5, ViT, CLIP), which must go on working.
A model that computes with the weight itself needs numbers, and is told what to do. Models read the
attributes of nn.Conv2d, too, which such layers hold as one `ConvSettings`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from gossamer.errors import GossamerError, InputError
from gossamer.ops.conv import ConvSettings, Pair

__all__ = ["ConvAttributes", "HasNoWeight", "Refusal", "WeightStandIn"]

_ATTRIBUTES = frozenset(
    {"dtype", "device", "shape", "ndim", "layout", "requires_grad", "is_leaf", "grad", "grad_fn"}
    | {"is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu", "is_sparse", "is_quantized", "itemsize"}
)
_METHODS = frozenset(
    {"size", "numel", "nelement", "dim", "ndimension", "element_size", "is_floating_point"}
    | {"is_complex", "is_signed", "get_device", "is_inference", "__len__"}
)


@dataclass(frozen=True)
class Refusal:
    """Gives no weight, but an error that says what to do."""

    error: type[GossamerError]
    message: str

    def __call__(self) -> NoReturn:
        """Refuse."""
        raise self.error(self.message)


class WeightStandIn(torch.Tensor):
    """A tensor without numbers. Every use but a look at its type and sizes calls `give`.

    Args:
        shape: of the dense weight.
        dtype: of the weight.
        device: of the weight.
        give: raises, or gives the dense weight that the use goes on with.
        requires_grad: whether the layer trains.
    """

    give: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(
        cls: type["WeightStandIn"],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        give: Callable[[], torch.Tensor],
        requires_grad: bool = False,
    ) -> "WeightStandIn":
        """Without storage."""
        made: WeightStandIn = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device, requires_grad=requires_grad
        )
        made.give = give
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what needs no numbers; everything else goes on with what `give` gives."""
        kwargs = kwargs or {}
        if _needs_no_numbers(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        args, kwargs = tree_map_only(cls, lambda weight: weight.give(), (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """The same for what comes past `__torch_function__`."""
        args, kwargs = tree_map_only(cls, lambda weight: weight.give(), (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"WeightStandIn(shape={list(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo: Any) -> "WeightStandIn":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        arguments = (tuple(self.shape), self.dtype, self.device, self.give, self.requires_grad)
        return (WeightStandIn, arguments)


class HasNoWeight(nn.Module):
    """Part of layers whose `.weight` is a stand-in: nobody can put another weight there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise InputError(
                f"{type(self).__name__}.weight: cannot be set; the layer multiplies by kept values"
                " only. Put an ordinary layer in its place, or tie weights before pruning."
            )
        super().__setattr__(name, value)


def _needs_no_numbers(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") in _ATTRIBUTES
    return name in _METHODS


class ConvAttributes:
    """`in_channels`, `kernel_size`, `stride` and so on, out of `settings`."""

    settings: ConvSettings
    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair
    padding: Pair | str
    dilation: Pair
    groups: int
    padding_mode: str


for _field in fields(ConvSettings):
    setattr(ConvAttributes, _field.name, property(attrgetter(f"settings.{_field.name}")))

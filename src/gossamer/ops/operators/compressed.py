# SPDX-License-Identifier: Apache-2.0
"""Intermediate tensors that hold only what is not zero, and the formats they are held in.

A compressed tensor is a container: its parts are ordinary tensors, and gradients flow through its
values. It has the shape and type of what it stands for; functions find the kernel for its format,
or compute with the dense tensor, which is counted.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch.overrides import get_default_nowrap_functions

from gossamer.errors import InputError, RegistryError
from gossamer.registry import Registry

__all__ = [
    "TENSOR_FORMATS",
    "CompressedTensor",
    "TensorFormat",
    "densified",
    "format_name",
    "has_compressed",
    "tensor_format",
    "tensors_in",
]

_STUB = """\
class Mine(gossamer.ops.operators.TensorFormat):
    name = "{name}"
    def compress(self, y, mask): ...     # dict of tensors, "values" among them
    def dense(self, parts, shape): ...   # differentiable in parts["values"]

gossamer.register.format("{name}", Mine())
"""


class TensorFormat(ABC):
    """How the entries that are kept are held.

    Attributes:
        name: as an `SparseOutput` names it.
    """

    name: ClassVar[str] = ""

    @abstractmethod
    def compress(self, y: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts for the entries of y that the mask keeps; "values" is differentiable in y."""

    @abstractmethod
    def dense(self, parts: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
        """The tensor with its zeros, differentiable in "values"."""

    def accepts(self, y: torch.Tensor) -> bool:
        """Whether it can hold such a tensor; the base takes all."""
        return True


TENSOR_FORMATS: Registry[TensorFormat] = Registry("tensor format", _STUB)


class CompressedTensor(torch.Tensor):
    """A tensor of which only some entries are held; see `TensorFormat`."""

    format: TensorFormat
    parts: dict[str, torch.Tensor]

    @staticmethod
    def __new__(
        cls: type["CompressedTensor"],
        format: TensorFormat,
        parts: Mapping[str, torch.Tensor],
        shape: torch.Size,
    ) -> "CompressedTensor":
        """A container of these parts, one of them "values"."""
        values = parts["values"]
        made: CompressedTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device=values.device
        )
        made.format, made.parts = format, dict(parts)
        return made

    @classmethod
    def of(cls, y: torch.Tensor, mask: torch.Tensor, format: TensorFormat) -> "CompressedTensor":
        """The entries of a dense tensor that a mask keeps."""
        return cls(format, format.compress(y, mask), y.shape)

    def dense(self) -> torch.Tensor:
        """With its zeros; gradients flow back into the values."""
        return self.format.dense(self.parts, self.shape)

    def with_values(self, values: torch.Tensor) -> "CompressedTensor":
        """Other values at the same entries."""
        return CompressedTensor(self.format, {**self.parts, "values": values}, self.shape)

    @property
    def nbytes_held(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        held = self.parts["values"].numel()
        return f"CompressedTensor({self.format.name}, {list(self.shape)}, {held} values held)"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _ANSWERED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _OF_VALUES:
            return func(args[0].parts["values"], *args[1:], **kwargs)
        from gossamer.ops.operators.running import run_function

        return run_function(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own stub has no cls
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise InputError(
            f"{func}: a compressed tensor was computed with past torch's functions. Make it dense"
            " first: x.dense()."
        )


# Questions that a container answers itself, as what it stands for would.
_GETTERS = (
    *("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_sparse", "is_nested"),
    *("is_quantized", "is_mkldnn", "is_meta", "is_mps"),
)
_ANSWERED = get_default_nowrap_functions() | {
    *(vars(torch._C.TensorBase)[name].__get__ for name in _GETTERS),
    *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.__hash__),
    *(torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.element_size, torch.Tensor.__len__),
    *(torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.__repr__),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}
_OF_VALUES = {
    vars(torch._C.TensorBase)[name].__get__ for name in ("requires_grad", "grad_fn", "is_leaf")
}


def tensor_format(name: str) -> TensorFormat | None:
    """The format called `name`; None for "dense"."""
    try:
        return None if name == "dense" else TENSOR_FORMATS.get(name)
    except RegistryError as error:
        raise InputError(f"format {name!r}: dense, or a registered one. {error}") from error


def format_name(x: torch.Tensor) -> str:
    """`dense`, or the format of a compressed tensor."""
    return x.format.name if isinstance(x, CompressedTensor) else "dense"


def tensors_in(x: Any) -> Iterator[torch.Tensor]:
    """All tensors of an argument, in order."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors_in(part)


def has_compressed(args: Any) -> bool:
    """Whether any tensor among arguments is compressed."""
    for x in args:
        if isinstance(x, CompressedTensor):
            return True
        if isinstance(x, tuple | list) and has_compressed(x):
            return True
    return False


def densified(x: Any) -> Any:
    """An argument with dense tensors in the place of compressed ones, in tuples and dicts too."""
    if isinstance(x, CompressedTensor):
        return x.dense()
    if isinstance(x, tuple | list):
        parts = [densified(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return {key: densified(part) for key, part in x.items()} if isinstance(x, dict) else x

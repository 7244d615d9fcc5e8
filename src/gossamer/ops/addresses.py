# SPDX-License-Identifier: Apache-2.0
"""Whether native code may read the memory of a tensor now.

Kernels take addresses, and a tensor is more than its memory: it may be the negative of what lies
there, stand for many tensors (vmap), have no memory (fake, meta), carry a tangent, or be watched by
somebody who records what is computed (jit.trace, make_fx). Reading the address is then wrong
without a word. All native calls get their addresses here:

`direct_address` is for calls past torch's dispatcher. Where it gives 0 the caller goes through its
custom op: torch resolves what it can, and tracers record the op.
`address` is for the inside of an op, where nobody watches any more, and for calls that have none:
it raises.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from gossamer.errors import InputError
from gossamer.ops.without_native import why_missing

__all__ = [
    "NO_TANGENT",
    "address",
    "bias_address",
    "checked_bias_address",
    "direct_address",
    "has_tangent",
    "is_watched",
    "runs_native",
]

# As torch.jit.is_tracing and the mode stacks, without a Python call around each.
_is_tracing = torch._C._is_tracing
_num_modes = torch._C._len_torch_dispatch_stack

NO_TANGENT = (
    "has no forward-mode derivative, and the tangent of its input would be lost. Use reverse mode"
    " on the compact model, or forward mode on the dense one (to_dense)."
)


def direct_address(x: Tensor) -> int:
    """Where the elements of x lie; 0 unless they lie on the CPU as they are and nobody watches."""
    kind = type(x)
    if (
        (kind is not Tensor and kind is not Parameter)
        or _is_tracing()
        or _num_modes()
        or forward_ad._current_level >= 0
        or x.is_neg()
        or not x.is_cpu
    ):
        return 0
    try:
        return x.data_ptr()
    except RuntimeError:  # no storage: sparse and mkldnn layouts, tensors of torch.func
        return 0


def address(x: Tensor | None, where: str) -> int:
    """Where the elements of x lie; 0 if there are none, and for None.

    Raises:
        InputError: they cannot be read. `where` begins the message.
    """
    start = 0 if x is None else direct_address(x)
    if start or x is None:
        return start
    reason = why_unreadable(x)
    if reason is not None:
        raise InputError(f"{where}: {reason}")
    return x.data_ptr()


def bias_address(bias: Tensor, num_rows: int) -> int:
    """`direct_address` for a bias of `num_rows` beside an input that nobody watches."""
    kind = type(bias)
    if (
        (kind is not Parameter and kind is not Tensor)
        or bias.dtype is not torch.float32
        or bias.numel() != num_rows
        or bias.dim() != 1
        or not bias.is_cpu
        or not bias.is_contiguous()
        or bias.is_neg()
    ):
        return 0
    try:
        return bias.data_ptr()
    except RuntimeError:  # of torch.func
        return 0


def checked_bias_address(bias: Tensor | None, num_rows: int, where: str) -> int:
    """The address of a bias inside an op; 0 for None, and an error for what is none."""
    if bias is not None and (
        bias.dtype is not torch.float32 or bias.shape != (num_rows,) or not bias.is_contiguous()
    ):
        raise InputError(
            f"{where}: bias must be contiguous float32 [{num_rows}] on the CPU, got {bias.dtype}"
            f" {list(bias.shape)} on {bias.device}."
        )
    return address(bias, where)


def runs_native(*tensors: Tensor | None) -> bool:
    """Whether all of them lie in the memory of the CPU, without gaps, and `address` gives it.

    False in an install without native module.
    """
    return why_missing() is None and all(
        x is None or (x.is_contiguous() and (direct_address(x) or why_unreadable(x) is None))
        for x in tensors
    )


def has_tangent(x: Tensor) -> bool:
    """Whether x is, or may be, a dual tensor of torch.autograd.forward_ad."""
    if forward_ad._current_level < 0:
        return False
    try:
        return forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]
    except RuntimeError:  # inside an op under some transforms: nobody can say
        return True


def is_watched() -> bool:
    """Whether somebody records or transforms what is computed: jit.trace, make_fx, fake tensors."""
    return _is_tracing() or _num_modes() > 0


def why_unreadable(x: Tensor) -> str | None:
    """Why native code cannot read x, and what to do; None if it can."""
    if is_watched():
        return (
            "cannot be traced, as nothing of it would be recorded. Trace or export the compact"
            " model, before it is compiled."
        )
    if not x.is_cpu or x.layout is not torch.strided:
        return (
            f"needs a dense tensor in the memory of the CPU, got layout {x.layout} on {x.device}."
            " Convert it with x.to_dense() or x.cpu()."
        )
    if has_tangent(x):
        return NO_TANGENT
    try:
        holds = x.data_ptr() != 0 or x.numel() == 0
    except RuntimeError:  # a wrapper, a fake tensor
        holds = False
    if not holds or x.is_neg():
        return (
            f"needs a tensor with its elements in memory; this {type(x).__name__} stands for"
            " others or has none. Pass x.clone(), or run outside of this transform."
        )
    return None

# SPDX-License-Identifier: Apache-2.0
"""Products of all experts in one native call, where that is faster than torch.

torch's product packs a weight before it multiplies: for 8 to 48 tokens that takes as long as the
product. These kernels read it where it lies. MKL runs its AVX2 code on processors of other makers,
where these are faster with any number of tokens. Weights in bfloat16 are widened block by block
where the processor has no instructions for them; torch's product does that many times over.

Legend: S tokens sorted by expert, E experts, O outputs and K inputs of one expert, R = E O rows.
"""

from collections.abc import Sequence

import torch

from gossamer.ops import _native
from gossamer.ops.addresses import address, direct_address
from gossamer.ops.calls import is_traced
from gossamer.ops.experts.gradients import starts_of
from gossamer.ops.kernels import active_kernels, available_extensions, cpu_name

# Tokens per expert that has any, in the mean, with MKL at its best: up to 32 measured faster, from
# 128 slower.
_MOST_TOKENS = 48
_FEWEST_HALVES = 8
_WHERE = "experts"
_DTYPES = (torch.float32, torch.bfloat16)


def is_faster(x_SK: torch.Tensor, weight_RK: torch.Tensor, counts: Sequence[int]) -> bool:
    """Whether the native call computes these products in less time than torch.

    A rule and no measurement: a run that is resumed must take the same way.
    """
    active = sum(count > 0 for count in counts)
    if not active or x_SK.dtype not in _DTYPES or weight_RK.dtype != x_SK.dtype:
        return False
    if x_SK.device.type != "cpu" or active_kernels() != "avx512":
        return False
    if x_SK.dtype == torch.bfloat16:
        # Fewer tokens do not pay for widening the weight.
        if len(x_SK) < _FEWEST_HALVES * active or "avx512bf16" in available_extensions():
            return False
        return len(x_SK) <= _MOST_TOKENS * active and can_run(x_SK, weight_RK)
    if "Intel" in cpu_name() and len(x_SK) > _MOST_TOKENS * active:
        return False
    return can_run(x_SK, weight_RK)


def can_run(*tensors: torch.Tensor) -> bool:
    """Whether native code may read these tensors now."""
    return all(
        not is_traced(t) and t.is_contiguous() and (direct_address(t) != 0 or not t.numel())
        for t in tensors
    )


def product(
    x_SK: torch.Tensor,
    weight_RK: torch.Tensor,
    bias_R: torch.Tensor | None,
    counts: Sequence[int],
) -> torch.Tensor:
    """The product of every token with the weight of its expert, [S, O]."""
    inner = weight_RK.shape[1]
    x, outputs = x_SK.float(), len(weight_RK) // len(counts)
    bias = None if bias_R is None else bias_R.float().contiguous()
    y = x.new_empty(len(x), outputs)
    _native.product_of_experts(
        starts_of(counts),
        address(x, _WHERE),
        address(weight_RK, _WHERE),
        weight_RK.dtype == torch.bfloat16,
        address(bias, _WHERE),
        address(y, _WHERE),
        len(x),
        outputs,
        inner,
        active_kernels(),
    )
    return y.to(x_SK.dtype)


def input_gradient(
    grad_SO: torch.Tensor, weight_RK: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """The product of every gradient with the weight of its expert, not turned, [S, K]."""
    outputs, inner = len(weight_RK) // len(counts), weight_RK.shape[1]
    grad = grad_SO.float()
    dx = grad.new_empty(len(grad), inner)
    _native.input_gradient_of_experts(
        starts_of(counts),
        address(grad, _WHERE),
        address(weight_RK, _WHERE),
        weight_RK.dtype == torch.bfloat16,
        address(dx, _WHERE),
        len(grad),
        outputs,
        inner,
        active_kernels(),
    )
    return dx.to(grad_SO.dtype)


def weight_gradient(
    grad_SO: torch.Tensor,
    x_SK: torch.Tensor,
    dweight_RK: torch.Tensor,
    dbias_R: torch.Tensor | None,
    counts: Sequence[int],
) -> None:
    """Write the gradients of experts that have tokens, in float32."""
    _native.weight_gradient_of_experts(
        starts_of(counts),
        address(grad_SO, _WHERE),
        address(x_SK, _WHERE),
        address(dweight_RK, _WHERE),
        address(dbias_R, _WHERE),
        len(x_SK),
        len(dweight_RK) // len(counts),
        x_SK.shape[1],
        active_kernels(),
    )

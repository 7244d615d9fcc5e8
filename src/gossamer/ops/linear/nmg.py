# SPDX-License-Identifier: Apache-2.0
"""The native kernel of nmg:n:m:g, fp32, many tokens: a loaded column serves n rows."""

import math

import torch

from gossamer.errors import KernelError
from gossamer.formats.base import SparseTensor
from gossamer.ops import _native
from gossamer.ops.dispatch import Kernel
from gossamer.ops.linear.canonical import canonical
from gossamer.ops.linear.packed_weight import PackedWeight, pack_weight
from gossamer.patterns.nmg import NMG

# n: one row alone shares nothing, more than four do not fit into the registers.
MIN_KEPT, MAX_KEPT = 2, 4
# C(m, n) ways to choose: each has too few columns when there are many. 28 (2:8) win over the panel
# kernel by 4 %, 120 (2:16) lose by 3 to 16 %.
MAX_CHOICES = 100


def pack_nmg(
    values: torch.Tensor,
    mask_bits: torch.Tensor,
    shape: tuple[int, int],
    *,
    num_kept: int,
    group: int,
    repeats: int,
) -> PackedWeight:
    """A weight whose mask obeys nmg:num_kept:group:repeats, from its canonical arrays."""
    return pack_weight(
        "nmg",
        _native.pack_nmg,
        values,
        mask_bits,
        shape,
        num_kept=num_kept,
        group=group,
        repeats=repeats,
    )


def _accepts(sparse: SparseTensor) -> bool:
    pattern = sparse.pattern
    return (
        isinstance(pattern, NMG)
        and MIN_KEPT <= pattern.num_kept <= MAX_KEPT
        and math.comb(pattern.group, pattern.num_kept) <= MAX_CHOICES
    )


def _prepare(sparse: SparseTensor) -> PackedWeight:
    pattern = sparse.pattern
    if not isinstance(pattern, NMG):
        raise KernelError(f"nmg kernel: expected an nmg:n:m:g weight, got {pattern}.")
    return pack_nmg(
        *canonical(sparse),
        num_kept=pattern.num_kept,
        group=pattern.group,
        repeats=pattern.repeats,
    )


KERNELS = (Kernel("nmg", _accepts, _prepare),)

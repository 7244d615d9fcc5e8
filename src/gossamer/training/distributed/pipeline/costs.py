# SPDX-License-Identifier: Apache-2.0
"""What every link of a chain costs in a training step: arithmetic and parameters.

Arithmetic is counted by one forward without gradients; a backward is twice that everywhere, so it
does not change the cut. A compact layer counts its kept weights where it runs on sparse kernels,
and the dense product where it rebuilds the dense weight: that is what it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import gossamer.nn  # noqa: F401  (registers the operations that are counted)

# An optimizer step touches a parameter once: weight, gradient and two moments are some 28 bytes of
# traffic, the time of about so many operations on CPUs and GPUs alike (1 to 10 FLOP per byte).
FLOPS_PER_PARAMETER = 128


@dataclass(frozen=True)
class LinkCost:
    """Of one link, for a step on the example.

    Attributes:
        parameters: trainable numbers; kept values of compact layers.
        flops: of one forward of the example.
    """

    parameters: int
    flops: int

    @property
    def total(self) -> float:
        """One number to balance: a forward, a backward and the update, in FLOPs."""
        return 3.0 * self.flops + FLOPS_PER_PARAMETER * self.parameters


def link_costs(
    model: nn.Module,
    links: Sequence[Sequence[str]],
    example: tuple[Any, ...],
    keywords: dict[str, Any] | None = None,
) -> tuple[LinkCost, ...]:
    """The cost of each link of `model`, whose forward is run once on `example`."""
    counter = FlopCounterMode(display=False, custom_mapping=_formulas())
    training = model.training
    try:
        with torch.no_grad(), counter:
            model.eval()(*example, **(keywords or {}))
    finally:
        model.train(training)
    counts = counter.get_flop_counts()
    root = type(model).__name__
    return tuple(
        LinkCost(
            parameters=sum(
                parameter.numel()
                for path in link
                for parameter in model.get_submodule(path).parameters()
                if parameter.requires_grad
            ),
            flops=sum(sum(counts.get(f"{root}.{path}", {}).values()) for path in link),
        )
        for link in links
    )


def _formulas() -> dict[Any, Any]:
    """FLOPs of operations that torch's counter does not know; shapes stand for tensors."""
    ops = torch.ops.gossamer

    def compact(x: Any, values: Any, mask_bits: Any, *rest: Any, **_: Any) -> int:
        _bias, columns, *sparse = rest
        weights = values[0] if any(sparse) else mask_bits[0] * columns
        return 2 * torch.Size(x[:-1]).numel() * int(weights)

    def resident(x: Any, values: Any, dense: Any, *_: Any, **__: Any) -> int:
        return 2 * torch.Size(x[:-1]).numel() * int(dense[0] * dense[1])

    def conv(x: Any, values: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return 2 * int(x[0] * out_shape[2] * out_shape[3] * values[0])

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    return {
        ops.compact_linear: compact,
        ops.resident_linear: resident,
        ops.compact_conv: conv,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    }

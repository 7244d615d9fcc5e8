# SPDX-License-Identifier: Apache-2.0
"""Which gradients the running backward really asks a custom operation for.

`ctx.needs_input_grad` is fixed at forward: it says which inputs are differentiable, not which
gradients this backward wants. Zero-bubble pipelines ask for the input first and for the weights
later, in two calls of autograd; an operation that answers by `needs_input_grad` computes both
products in both. Built-in operations of torch ask the engine, and so does this.
"""

from typing import Any

import torch


def wanted_gradients(ctx: Any) -> tuple[bool, ...]:
    """Like `ctx.needs_input_grad`, less what the engine would throw away."""
    needed: tuple[bool, ...] = ctx.needs_input_grad
    nodes = [node for node, _ in getattr(ctx, "next_functions", ()) if node is not None]
    if len(nodes) != sum(needed):  # not called by the engine, as under functorch
        return needed
    remaining = iter(nodes)
    return tuple(need and _will_run(next(remaining)) for need in needed)


def _will_run(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # torch refuses to answer for a leaf whose gradient is being captured: it is wanted. It also
        # refuses outside of a backward, where nothing is known and all is computed.
        return True

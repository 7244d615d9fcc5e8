# SPDX-License-Identifier: Apache-2.0
"""Bytes that a rank sends in a step, by purpose, as rings send them.

Legend: N numbers of this rank, D data ranks, S shard ranks. An all-reduce sends 2 (D-1)/D N, a
gather or a reduce-scatter (S-1)/S N. (gloo reduce-scatters by an all-reduce, twice as much.)
"""

from gossamer.training.distributed.placement.gradients import Wire
from gossamer.training.distributed.placement.layout import Layout
from gossamer.training.distributed.processes.mesh_sizes import MeshSizes


def step_traffic(sizes: MeshSizes, layout: Layout, wire: Wire) -> dict[str, int]:
    """Of one step with one batch: gradients, parameters (shard) and activations (pipeline)."""
    full = sum(p.trained.numel() * p.trained.element_size() for p in layout.pieces)
    halves = sum(p.trained.numel() * 2 for p in layout.pieces)
    sent = halves if wire == "bf16" and sizes.shard == 1 else full
    gradients = 2 * (sizes.data - 1) / sizes.data * sent
    gathered = (sizes.shard - 1) * full
    found = {
        # Shards of gradients go to their ranks first.
        "gradients": round(gradients + gathered),
        # Once for forward, once more for backward.
        "parameters": 2 * gathered,
        "activations": 0 if layout.pipeline is None else layout.pipeline.sent_bytes,
    }
    return {purpose: num_bytes for purpose, num_bytes in found.items() if num_bytes}

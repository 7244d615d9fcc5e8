# SPDX-License-Identifier: Apache-2.0
"""What users hung on a module, which is lost if another module or a kernel takes its place.

A layer is more than its weights: hooks, a `forward` of its own, a parametrization, further tensors.
Whoever replaces a layer asks `carried`; whoever computes what a module would have computed, and
leaves the module where it is, asks `carried_by_calls`. Both say in words what is in the way, None
if nothing is. The rule: what cannot be kept is refused for that module, by name, never dropped.
"""

from gossamer.nn.surgery.carried.modules import (
    LEFT,
    Watch,
    call_hooks,
    carried,
    carried_by_calls,
    carried_by_state,
    hand_over,
    idle,
    leave,
)

__all__ = [
    "LEFT",
    "Watch",
    "call_hooks",
    "carried",
    "carried_by_calls",
    "carried_by_state",
    "hand_over",
    "idle",
    "leave",
]

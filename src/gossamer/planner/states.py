# SPDX-License-Identifier: Apache-2.0
"""How weights are held in training, and what each form moves: bytes, by entry.

Bytes held are the formulas of `gossamer.training.memory.formulas`. Bytes moved are counted here: by
the optimizer in a step, and between dense and compressed forms in every microbatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gossamer.errors import InputError
from gossamer.planner.cluster import ClusterSpec
from gossamer.training.memory.formulas import MASK_BYTES, VARIANTS, StateCost

_F = MASK_BYTES


@dataclass(frozen=True)
class Moved:
    """Bytes moved per kept entry, and per entry kept or not."""

    per_kept: float = 0.0
    per_weight: float = 0.0

    def per_parameter(self, density: float) -> float:
        """For a kept fraction."""
        return self.per_kept * density + self.per_weight


@dataclass(frozen=True)
class State:
    """A form of training.

    Attributes:
        name: a key of `VARIANTS`.
        pruned: bytes held of weights that a mask covers.
        rest: bytes held of other parameters.
        number: bytes of a weight in a product, and of a gradient of a kept entry that is sent.
        rest_number: bytes of a gradient of other parameters that is sent.
        activation: bytes of an activation.
        is_sparse: whether masks make anything smaller.
        optimizer: bytes moved in a step.
        rest_optimizer: the same for other parameters.
        compress: bytes moved in a microbatch between dense and compressed weights and gradients.
        uses_kernels: whether products may run on sparse kernels, where the cluster has them.
        can_shard: whether the state may be divided among ranks as FSDP does.
    """

    name: str
    pruned: StateCost
    rest: StateCost
    number: int
    rest_number: int
    activation: int
    is_sparse: bool
    optimizer: Moved
    rest_optimizer: Moved
    compress: Moved = Moved()
    uses_kernels: bool = False
    can_shard: bool = True

    def on(self, cluster: ClusterSpec) -> "State":
        """As it is run there: on CPUs 16-bit weights meet 32-bit activations."""
        return replace(self, activation=4) if cluster.device == "cpu" else self


def _state(name: str, rest: str, number: int, optimizer: Moved, **more: object) -> State:
    return State(
        name=name,
        pruned=VARIANTS[name],
        rest=VARIANTS[rest],
        number=number,
        rest_number=2 if rest == _MIXED else 4,
        activation=number,
        is_sparse=name != rest,
        optimizer=optimizer,
        rest_optimizer=_DENSE_MOVED[rest],
        **more,  # type: ignore[arg-type]
    )


_MIXED, _FP32 = "dense, mixed precision", "dense fp32"
# Mixed precision reads and writes 16- and 32-bit gradients, masters and moments and writes 16-bit
# weights: 38 bytes. Plain AdamW reads a gradient and reads and writes a weight and two moments.
_DENSE_MOVED = {_MIXED: Moved(per_weight=38), _FP32: Moved(per_weight=28)}
# Forward, recomputed forward and gradient of the input each build a dense 16-bit weight.
_JIT = Moved(per_kept=3 * 2 + 2, per_weight=3 * (2 + _F) + 2)

STATES: Final[Mapping[str, State]] = {
    _MIXED: _state(_MIXED, _MIXED, 2, _DENSE_MOVED[_MIXED]),
    # Gathers the kept entries of each dense gradient; scatters new weights into the dense ones.
    "samo": _state("samo", _MIXED, 2, Moved(34, 6), compress=Moved(8, 2), can_shard=False),
    "resident": _state(
        "resident", _MIXED, 2, Moved(22, 2 + _F), compress=Moved(4, 2 + _F), can_shard=False
    ),
    "exact": _state("exact", _FP32, 2, Moved(26), compress=_JIT, uses_kernels=True),
    "8bit": _state("8bit", _FP32, 2, Moved(12.05), compress=_JIT, uses_kernels=True),
    _FP32: _state(_FP32, _FP32, 4, _DENSE_MOVED[_FP32]),
    "fp32": _state("fp32", _FP32, 4, Moved(28), compress=_JIT, uses_kernels=True),
}
_COMPARED = {"gpu": (_MIXED, "samo", "exact", "8bit"), "cpu": (_FP32, "fp32", "exact", "8bit")}


def compared_states(cluster: ClusterSpec) -> tuple[State, ...]:
    """What is compared where nothing else is asked for; the first is dense."""
    return tuple(STATES[name] for name in _COMPARED[cluster.device])


def find_state(name: str) -> State:
    """The state of that name."""
    if name not in STATES:
        raise InputError(f"state: must be one of {', '.join(STATES)}; got {name!r}.")
    return STATES[name]

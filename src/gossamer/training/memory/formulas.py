# SPDX-License-Identifier: Apache-2.0
"""What training state costs, as formulas: bytes per parameter, by kind, without torch.

A pruned weight costs `per_kept` bytes for each kept entry and `per_weight` bytes for each entry,
kept or not. With f the kept fraction that is per_kept f + per_weight bytes per parameter. Scratch
of one layer at a time (a dense weight in mode "jit") is not state and not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from gossamer.errors import InputError

__all__ = [
    "KINDS",
    "MASK_BYTES",
    "VARIANTS",
    "Kind",
    "StateCost",
    "dense_cost",
    "moment_bytes",
    "state_cost",
]

Kind = Literal["weights", "gradients", "masters", "moments", "positions", "dense copies", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Elements that share one exponent in 8-bit moments.
MOMENT_BLOCK = 256
MASK_BYTES = 1 / 8


@dataclass(frozen=True)
class StateCost:
    """Bytes per entry of a weight in training.

    Attributes:
        per_kept: of each kept entry, by kind.
        per_weight: of each entry, by kind.
    """

    per_kept: Mapping[Kind, float]
    per_weight: Mapping[Kind, float]

    @staticmethod
    def samo(
        weight_bytes: int = 2,
        master_bytes: float = 4,
        moment_bytes: float = 8,
        *,
        is_wide: bool = True,
    ) -> "StateCost":
        """The cost of a weight in mode "samo": a dense weight, an int32 index of what is kept.

        Args:
            weight_bytes: of an entry of the dense weight, and of a kept gradient.
            master_bytes: of a master.
            moment_bytes: of all moments of one entry.
            is_wide: whether gradients are raised to float32, and masters rounded in a copy.
        """
        kept: dict[Kind, float] = {
            "gradients": weight_bytes + (4 if is_wide else 0),
            "masters": master_bytes + (weight_bytes if is_wide else 0),
            "moments": moment_bytes,
            "positions": 4,
        }
        return StateCost(kept, {"weights": weight_bytes})

    def by_kind(self, density: float) -> dict[Kind, float]:
        """Bytes per parameter, by kind, for a kept fraction."""
        if not 0 <= density <= 1:
            raise InputError(f"density: must be a fraction in [0, 1], got {density!r}.")
        return {
            kind: self.per_kept.get(kind, 0.0) * density + self.per_weight.get(kind, 0.0)
            for kind in KINDS
        }

    def bytes_per_parameter(self, density: float) -> float:
        """Bytes per parameter for a kept fraction."""
        return sum(self.by_kind(density).values())

    def __str__(self) -> str:
        kept, always = sum(self.per_kept.values()), sum(self.per_weight.values())
        return f"{kept:.4g} f + {always:.4g}" if kept else f"{always:.4g}"


def state_cost(
    weight_bytes: int = 4,
    master_bytes: float = 0,
    moment_bytes: float = 8,
    *,
    dense_bytes: float = 0,
    values_in_dense: bool = False,
) -> StateCost:
    """The cost of a compact weight.

    Args:
        weight_bytes: of one value and of its gradient.
        master_bytes: what is kept of a master beside the weight: 2 for its exact lower half, 1 for
            a 24-bit master, 4 for a copy in float32.
        moment_bytes: of all moments of one entry, see `moment_bytes`.
        dense_bytes: of the dense copy of mode "resident".
        values_in_dense: whether the dense copy is the only one.
    """
    kept = _per_entry(weight_bytes, master_bytes, moment_bytes)
    if values_in_dense:
        kept["weights"] = 0
    return StateCost(kept, {"positions": MASK_BYTES, "dense copies": dense_bytes})


def moment_bytes(count: int, *, eight_bit: bool = False) -> float:
    """Bytes of `count` moments of one entry: float32, or codes with their share of an exponent."""
    return count * (1 + 1 / MOMENT_BLOCK if eight_bit else 4)


def dense_cost(weight_bytes: int, master_bytes: float, moment_bytes: float) -> StateCost:
    """The cost of a weight that is not pruned; gradients have the type of the weight."""
    return StateCost({}, _per_entry(weight_bytes, master_bytes, moment_bytes))


def _per_entry(weight: float, master: float, moments: float) -> dict[Kind, float]:
    return {"weights": weight, "gradients": weight, "masters": master, "moments": moments}


# Adam in the forms that are compared. SAMO (arXiv 2302.05045): dense 16-bit weights; compressed
# 16-bit and 32-bit gradients, 32-bit masters, two moments, one int32 index, and a 16-bit copy while
# masters are rounded. Dense mixed precision holds the same uncompressed.
VARIANTS = {
    "dense, mixed precision": StateCost(
        {}, {"weights": 2, "gradients": 2 + 4, "masters": 4, "moments": 8}
    ),
    "dense fp32": dense_cost(4, 0, moment_bytes(2)),
    "samo": StateCost.samo(),
    "resident": state_cost(2, 2, dense_bytes=2, values_in_dense=True),
    "fp32": state_cost(),
    "exact": state_cost(2, 2),
    "8bit": state_cost(2, 1, moment_bytes(2, eight_bit=True)),
}

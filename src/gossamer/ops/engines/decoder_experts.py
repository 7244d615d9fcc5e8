# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as a part of the native decoder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gossamer.ops.engines.decoder import PackedLayer

__all__ = ["DecoderExperts", "PackedExpert"]


@dataclass(frozen=True)
class PackedExpert:
    """The two weights of one expert; rows of `gate_up` are gate and up."""

    gate_up: "PackedLayer"
    down: "PackedLayer"

    def native(self) -> tuple[object, object]:
        """As the native decoder takes it."""
        return self.gate_up.native(), self.down.native()

    @property
    def nbytes(self) -> int:
        """Bytes that a token reads which goes to it."""
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True)
class DecoderExperts:
    """The feed-forward part of a layer as a mixture of experts.

    Attributes:
        top_k: experts of a token.
        normalised: the weights of a token's experts add up to 1.
        router: [experts, width], fp32.
        experts: all of one size.
        shared: sees all tokens; or None.
        shared_gate: [1, width], fp32, the logit of its factor; None: the factor is 1.
    """

    top_k: int
    normalised: bool
    router: "PackedLayer"
    experts: tuple[PackedExpert, ...]
    shared: PackedExpert | None = None
    shared_gate: "PackedLayer | None" = None

    def native(self) -> tuple[object, ...]:
        """As the native decoder takes it."""
        shared = None if self.shared is None else self.shared.native()
        gate = None if self.shared_gate is None else self.shared_gate.native()
        experts = tuple(expert.native() for expert in self.experts)
        return self.top_k, self.normalised, self.router.native(), experts, shared, gate

    @property
    def linears(self) -> tuple["PackedLayer", ...]:
        """All weights."""
        shared = () if self.shared is None else (self.shared,)
        gate = () if self.shared_gate is None else (self.shared_gate,)
        each = [part for one in (*self.experts, *shared) for part in (one.gate_up, one.down)]
        return (self.router, *each, *gate)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token reads, in the mean of the experts."""
        of_experts = sum(expert.nbytes for expert in self.experts)
        others = sum(linear.nbytes for linear in self.linears) - of_experts
        return others + round(of_experts * self.top_k / len(self.experts))

# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as the native decoder takes it: read, checked and packed."""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.moe.projections import ExpertProjections, projections_of
from gossamer.ops.engines.decoder_experts import DecoderExperts, PackedExpert
from gossamer.running.decoder.weights import WeightPacker, joined, of_experts, plain


@dataclass(frozen=True)
class Mixture:
    """The mixture of experts of one layer.

    Attributes:
        facts: where its family keeps what (`ExpertFacts`).
        layer: the block.
        where: path of the block.
        top_k: experts of a token.
        normalised: the weights of a token's experts add up to 1.
        router: [E, width].
        projections: the layers of the experts.
    """

    facts: Any
    layer: nn.Module
    where: str
    top_k: int
    normalised: bool
    router: torch.Tensor
    projections: ExpertProjections

    @classmethod
    def of(cls, facts: Any, layer: nn.Module, where: str, gated: bool) -> "Mixture | None":
        """That of a block; None where its feed-forward part is an ordinary one."""
        try:
            module = layer.get_submodule(facts.experts)
        except AttributeError:
            return None
        found, place = projections_of(module), f"decoder: {where}.{facts.experts}"
        if found is None:
            raise InputError(
                f"{place} is a {type(module).__name__}, whose weights are not stored as"
                " transformers stores experts. gossamer.compile runs the model layer by layer."
            )
        if found.has_gate != gated or found.own_gate:
            raise InputError(
                f"{place}: not supported in this model: a gate of its own. gossamer.compile runs"
                " the model layer by layer."
            )
        router: Any = layer.get_submodule(facts.router)
        top_k, shape = int(router.top_k), tuple(router.weight.shape)
        if shape[0] != found.num_experts or not 1 <= top_k <= found.num_experts:
            raise InputError(
                f"decoder: {where}.{facts.router} chooses {top_k} of {shape[0]} experts, and there"
                f" are {found.num_experts}. The configuration of this model and its weights do not"
                " agree."
            )
        normalised = bool(attrgetter(facts.normalised)(layer)) if facts.normalised else True
        return cls(facts, layer, where, top_k, normalised, router.weight, found)

    @property
    def activation(self) -> nn.Module:
        """Of its experts; of the shared one, too, which the family makes alike."""
        return self.projections.activation

    def packed(self, pack: WeightPacker) -> DecoderExperts:
        """Every expert packed alike; the router stays in float32."""
        facts, num_experts = self.facts, self.projections.num_experts
        exact = replace(pack, dtype="fp32", rows=pack.rows)
        ups, downs = (
            pack.each(of_experts(layer, num_experts, f"{self.where}.{facts.experts}.{name}"))
            for name, layer in (("up", self.projections.up), ("down", self.projections.down))
        )
        router = exact(plain(self.router, f"{self.where}.{facts.router}"))
        shared = gate = None
        if facts.shared:
            expert = self.layer.get_submodule(facts.shared)
            *expansions, down = (expert.get_submodule(name) for name in facts.shared_parts)
            place = f"{self.where}.{facts.shared}"
            shared = PackedExpert(pack(joined(expansions, place)), pack(joined([down], place)))
        if facts.shared_gate:
            path = f"{self.where}.{facts.shared_gate}"
            gate = exact(joined([self.layer.get_submodule(facts.shared_gate)], path))
        experts = tuple(PackedExpert(*parts) for parts in zip(ups, downs, strict=True))
        return DecoderExperts(self.top_k, self.normalised, router, experts, shared, gate)

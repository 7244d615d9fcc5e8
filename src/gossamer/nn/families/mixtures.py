# SPDX-License-Identifier: Apache-2.0
"""Which classes the dense models of a family become when their feed-forward parts get experts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MIXTRAL", "QWEN2_MOE", "MixtureFacts"]


@dataclass(frozen=True)
class MixtureFacts:
    """Classes whose layers are those of a family, with experts for the feed-forward part.

    Paths are relative to a block of the family.

    Attributes:
        module: where its classes are.
        prefix: how the names of its classes begin, that of its configuration included; a zoo model
            has no configuration, and this is its whole name.
        count: setting that holds the number of experts.
        width: setting that holds the inner features of one expert.
        up: the layer of all experts before the activation, gate rows first where it is gated.
        down: the one behind it.
        router: module whose weight has a row for each expert.
        top_k: setting that holds how many experts a token has.
        shared: the feed-forward part that every token has besides; empty if there is none.
        shared_gate: the layer whose sigmoid it is multiplied with.
        shared_width: setting that holds its inner features.
        fixed: settings that it always has.
        needs: settings that the dense model must have.
    """

    module: str
    prefix: str
    count: str
    width: str
    up: str = "mlp.experts.gate_up_proj"
    down: str = "mlp.experts.down_proj"
    router: str = "mlp.gate"
    top_k: str = "num_experts_per_tok"
    shared: str = ""
    shared_gate: str = ""
    shared_width: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)


MIXTRAL = MixtureFacts(
    "transformers",
    "Mixtral",
    "num_local_experts",
    "intermediate_size",
    needs={"attention_bias": False, "mlp_bias": False},
)
QWEN2_MOE = MixtureFacts(
    "transformers",
    "Qwen2Moe",
    "num_experts",
    "moe_intermediate_size",
    shared="mlp.shared_expert",
    shared_gate="mlp.shared_expert_gate",
    shared_width="shared_expert_intermediate_size",
    fixed={"norm_topk_prob": True, "qkv_bias": False},
    needs={"attention_bias": False, "mlp_bias": False, "sliding_window": None},
)

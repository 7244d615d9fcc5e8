# SPDX-License-Identifier: Apache-2.0
"""What each stage of a recipe does to a model: one file per stage, and the table that names them.

`STAGES` maps what a stage says (a class of `gossamer.recipes.stages`) to the function that carries
it out. Every function takes the model, the settings and a `StageInput`, changes the model in place
and returns a `StageOutcome`. A `train` stage is carried out by `gossamer.runs.training`.
`recover_data` makes samples for the stages that train, `prune` can be asked for what it would do.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gossamer.recipes.stages import Prune, Recover, Relufy, Round, StageSettings, Structured, Tokens
from gossamer.recipes.stages.attention import Attention
from gossamer.recipes.stages.channels import Channels
from gossamer.recipes.stages.mixtures import FewerExperts, Moefy, Upcycle
from gossamer.runs.stages.attention import run_attention_stage
from gossamer.runs.stages.base import StageInput, StageOutcome
from gossamer.runs.stages.channels import run_channels_stage
from gossamer.runs.stages.mixtures import (
    run_fewer_experts_stage,
    run_moefy_stage,
    run_upcycle_stage,
)
from gossamer.runs.stages.prune import run_prune_stage
from gossamer.runs.stages.recover import run_recover_stage
from gossamer.runs.stages.relufy import run_relufy_stage
from gossamer.runs.stages.round import run_round_stage
from gossamer.runs.stages.structured import run_structured_stage
from gossamer.runs.stages.tokens import run_tokens_stage

STAGES: Final[Mapping[type[StageSettings], Callable[..., StageOutcome]]] = {
    Prune: run_prune_stage,
    Structured: run_structured_stage,
    Channels: run_channels_stage,
    Recover: run_recover_stage,
    Tokens: run_tokens_stage,
    Attention: run_attention_stage,
    Relufy: run_relufy_stage,
    Upcycle: run_upcycle_stage,
    Moefy: run_moefy_stage,
    FewerExperts: run_fewer_experts_stage,
    Round: run_round_stage,
}

__all__ = [
    "STAGES",
    "StageInput",
    "StageOutcome",
]

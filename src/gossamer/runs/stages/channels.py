# SPDX-License-Identifier: Apache-2.0
"""One `channels` stage of a recipe: a convolutional network loses channels."""

from torch import nn

from gossamer.errors import RecipeError
from gossamer.pruning.structured.channels import prune_channels
from gossamer.recipes.stages.channels import Channels
from gossamer.runs.stages.base import StageInput, StageOutcome


def run_channels_stage(model: nn.Module, step: Channels, given: StageInput) -> StageOutcome:
    """Make `model` smaller in place."""
    example = given.needed_batches("cutting channels")[0].first_tensor()
    if example is None:
        raise RecipeError("recipe: cutting channels needs batches with a tensor of images.")
    cut = prune_channels(model, example, **step.model_dump())
    return StageOutcome(str(cut).splitlines(), changed_shapes=True)

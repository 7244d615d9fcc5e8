# SPDX-License-Identifier: Apache-2.0
"""Token pruning in files: how an encoder drops tokens; its thresholds and rules are tensors."""

from torch import nn

from gossamer.errors import ArtifactError, TargetError
from gossamer.io.artifact.manifest import TokenPruning
from gossamer.nn.token_pruning import TokenPrunedEncoder, add_token_pruning


def token_pruning_of(model: nn.Module) -> TokenPruning | None:
    """What the encoder of `model` that prunes tokens is set to; None if there is none."""
    for module in model.modules():
        if isinstance(module, TokenPrunedEncoder):
            return TokenPruning(
                phase=module.phase, soft=module.soft, temperature=module.temperature
            )
    return None


def prune_tokens(model: nn.Module, wanted: TokenPruning | None) -> None:
    """Put an encoder that prunes tokens into a skeleton, if the file asks for one."""
    if wanted is None:
        return
    try:
        encoder = add_token_pruning(model, soft=wanted.soft)
    except TargetError as error:
        raise ArtifactError(f"architecture.tokens: {error}") from error
    encoder.phase, encoder.temperature = wanted.phase, wanted.temperature

# SPDX-License-Identifier: Apache-2.0
"""Encoders that drop tokens between their layers; `add_token_pruning` makes them."""

from gossamer.nn.tokens.token_pruning import (
    EncoderOutput,
    Normalise,
    Phase,
    Soft,
    TokenPrunedEncoder,
    TokenTrace,
    add_token_pruning,
    token_encoder,
)

__all__ = [
    "EncoderOutput",
    "Normalise",
    "Phase",
    "Soft",
    "TokenPrunedEncoder",
    "TokenTrace",
    "add_token_pruning",
    "token_encoder",
]

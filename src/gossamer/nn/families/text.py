# SPDX-License-Identifier: Apache-2.0
"""What users of text models ask: does it write, and how many tokens does it take?

Answers come from a model's class or from its configuration. `is_decoder` asks whether it gives
logits of the next token, as classes whose names end in `DECODER_HEADS` do; `num_positions` and
`starts_after_padding` ask for its positions.
"""

from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families.family import ClassNames, PositionFacts
from gossamer.nn.families.table import FAMILIES

__all__ = [
    "DECODER_HEADS",
    "is_decoder",
    "num_positions",
    "starts_after_padding",
]

# How the names of models end that give logits of the next token, of any family.
DECODER_HEADS = ("ForCausalLM", "LMHeadModel")
# How configurations of transformers name the number of positions.
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_AFTER_PADDING = {
    family.classes.model_type
    for family in FAMILIES
    if isinstance(family.classes, ClassNames)
    and isinstance(family.positions, PositionFacts)
    and family.positions.after_padding
}


def is_decoder(model: nn.Module) -> bool:
    """Whether the class of `model` says that it gives logits of the next token."""
    return type(model).__name__.endswith(DECODER_HEADS)


def starts_after_padding(config: Any) -> bool:
    """Whether a configuration of transformers numbers positions from behind the padding token."""
    return config.model_type in _AFTER_PADDING


def num_positions(config: Any, default: int | None = None) -> int:
    """Tokens of the longest sequence that a model of this configuration takes.

    Args:
        config: of transformers.
        default: for one that does not say; None: that is an error.
    """
    found = [getattr(config, name, None) for name in _POSITIONS]
    known = [int(number) for number in found if number]
    if not known and default is not None:
        return default
    if not known:
        raise InputError(
            "the configuration of this model does not say how many positions it has; expected one"
            f" of {', '.join(_POSITIONS)}."
        )
    reserved = int(config.pad_token_id) + 1 if starts_after_padding(config) else 0
    return min(known) - reserved

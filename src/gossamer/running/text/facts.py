# SPDX-License-Identifier: Apache-2.0
"""What the configuration of a model says about tokens, as numbers that a file can hold."""

from dataclasses import dataclass
from typing import Any

__all__ = ["TOKEN_IDS", "TextFacts"]

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id")


@dataclass(frozen=True)
class TextFacts:
    """What the configuration of a model says about tokens; a number is what files may hold."""

    positions: int
    vocab_size: int
    bos_token_id: Any = None
    eos_token_id: Any = None
    pad_token_id: Any = None
    sep_token_id: Any = None
    cls_token_id: Any = None

    @classmethod
    def of(cls, config: Any) -> "TextFacts":
        """Those of a configuration of transformers."""
        from gossamer.nn.families.text import num_positions

        named = {name: getattr(config, name, None) for name in TOKEN_IDS}
        return cls(num_positions(config), int(config.vocab_size), **named)

# SPDX-License-Identifier: Apache-2.0
"""What keys and values of a text take in memory, from the sizes of a decoder alone."""

from dataclasses import dataclass
from typing import Any

from gossamer.errors import InputError
from gossamer.ops.engines.decoder_session import key_bytes
from gossamer.patterns.attention.key_rules import KEY_TYPES, parse_key_rules

__all__ = ["KeySizes", "key_memory"]


@dataclass(frozen=True)
class KeySizes:
    """How many numbers a token leaves behind: two vectors for each layer and head of keys."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of_config(cls, config: Any, where: str) -> "KeySizes":
        """As the configuration of a decoder of transformers says."""
        config = getattr(config, "text_config", config)

        def number(*names: str) -> int | None:
            values = (getattr(config, name, None) for name in names)
            return next((value for value in values if isinstance(value, int) and value > 0), None)

        layers, heads = number("num_hidden_layers"), number("num_attention_heads")
        width = number("hidden_size")
        if layers is None or heads is None or width is None:
            raise InputError(
                f"{where}: keys and values are those of decoders of transformers, and this"
                " configuration names no layers, heads and width."
            )
        return cls(
            layers, number("num_key_value_heads") or heads, number("head_dim") or width // heads
        )


@dataclass(frozen=True)
class KeyMemory:
    """Bytes of one sequence of so many tokens.

    Attributes:
        attention: as `--attention` takes it.
        keys: as `--kv` takes it.
        size: bytes of keys, values and what chooses among them.
        per_token: bytes that one more token takes; 0 if memory is bounded.
    """

    attention: str
    keys: str
    size: int
    per_token: float


def key_memory(sizes: KeySizes, tokens: int) -> list[KeyMemory]:
    """All types of keys: everything kept, pages chosen among it, and a window of a quarter."""
    if tokens < 1:
        raise InputError(f"keys: a text has at least one token, got {tokens}.")
    texts = ("full", f"pages:{max(tokens // 8, 1)}", f"sinks:4+window:{max(tokens // 4, 1)}")
    found = []
    for text in texts:
        for dtype in KEY_TYPES:
            rules = parse_key_rules(text, dtype)
            size = key_bytes(sizes.layers, sizes.kv_heads, sizes.head_dim, tokens, rules)
            per_token = 0.0 if rules.window else size / tokens
            found.append(KeyMemory(text, dtype, size, per_token))
    return found

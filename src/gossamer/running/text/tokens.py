# SPDX-License-Identifier: Apache-2.0
"""Texts as token numbers, never more of them than the model has positions for."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.nn.families.text import num_positions
from gossamer.running.text.special_tokens import SpecialTokens


class TextTokens:
    """The tokenizer of a model. It is never changed, so threads may share it.

    Args:
        beside: files beside the model's weights, by name: tokenizer.json is read.
        config: of the model; says how many positions and tokens it knows.
        max_tokens: use fewer positions than the model has.
    """

    def __init__(
        self, beside: Mapping[str, bytes], config: Any, max_tokens: int | None = None
    ) -> None:
        self.tokenizer = make_tokenizer(beside.get(TOKENIZER_FILE))
        self.special = SpecialTokens(self.tokenizer, config)
        most = num_positions(config)
        self._around = int(self.tokenizer.num_special_tokens_to_add(False))
        if max_tokens is not None and not self._around < max_tokens <= most:
            raise InputError(
                f"max_tokens must be between {self._around + 1} and the {most} positions of this"
                f" model, got {max_tokens}."
            )
        self.max_tokens = most if max_tokens is None else max_tokens
        self.vocab_size = int(config.vocab_size)
        self.padding = int(getattr(config, "pad_token_id", None) or 0)

    def whole(
        self, texts: Sequence[str], where: str = "text", *, special_tokens: bool = False
    ) -> list[torch.Tensor]:
        """Ids of each text with what the tokenizer sets around it; InputError names a long one.

        A special token that a text spells is text like other, unless `special_tokens`.
        """
        encoded = self.special.encode_all(texts, where=where, special_tokens=special_tokens)
        return [self.checked(item.ids, f"{where}[{number}]") for number, item in enumerate(encoded)]

    def cut(
        self, texts: Sequence[str], *, special_tokens: bool = False
    ) -> tuple[list[torch.Tensor], int]:
        """Ids of each text, cut where it is too long, and how many were cut."""
        num_cut, found = 0, []
        encoded = self.special.encode_all(texts, special_tokens=special_tokens)
        for text, item in zip(texts, encoded, strict=True):
            if len(item.ids) > self.max_tokens:
                num_cut += 1
                length = self.max_tokens - self._around
                item = self.special.cut(text, length, special_tokens=special_tokens)
            found.append(self.checked(item.ids, "text"))
        return found, num_cut

    def checked(self, ids: Sequence[int], where: str) -> torch.Tensor:
        """Token numbers that this model takes, int64; InputError says what is wrong with others."""
        if not ids:
            raise InputError(f"{where}: has no tokens; expected at least one.")
        if len(ids) > self.max_tokens:
            raise InputError(
                f"{where}: has {len(ids)} tokens; expected at most {self.max_tokens}. Shorten it."
            )
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise InputError(
                f"{where}: token numbers must be between 0 and {self.vocab_size - 1}, got"
                f" {min(ids)} to {max(ids)}."
            )
        return torch.tensor(ids, dtype=torch.int64)

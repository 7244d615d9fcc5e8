# SPDX-License-Identifier: Apache-2.0
"""Text as numbers: its bytes, or byte pairs learned from the training text itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from gossamer.errors import ResourceError
from gossamer.io.safe_files.tokenizer.guarded_tokenizer import (
    TOKENIZER_FILE,
    GuardedTokenizer,
    make_tokenizer,
)

NUM_BYTES = 256


@dataclass(frozen=True)
class Vocabulary:
    """How a text becomes ids.

    Attributes:
        size: number of ids.
        tokenizer: of the tokenizers package; None for bytes.
    """

    size: int
    tokenizer: Any = None

    def encode(self, text: str) -> torch.Tensor:
        """int64 ids."""
        if self.tokenizer is None:
            raw = np.frombuffer(text.encode("utf-8"), np.uint8)
            return torch.from_numpy(raw.astype(np.int64))
        return torch.tensor(self.tokenizer.encode(text).ids, dtype=torch.int64)

    @property
    def files(self) -> dict[str, bytes]:
        """What goes beside a saved model."""
        if self.tokenizer is None:
            return {}
        return {TOKENIZER_FILE: self.tokenizer.to_str().encode("utf-8")}


def make_vocabulary(
    kind: Literal["bytes", "bpe"], size: int, texts: Sequence[str], saved: bytes | None = None
) -> Vocabulary:
    """Bytes, or a BPE of at most `size` entries.

    Args:
        kind: which of them.
        size: entries of the BPE.
        texts: what the BPE is learned from.
        saved: the tokenizer.json of a run that is resumed; it is taken instead of learning anew.
    """
    if kind == "bytes":
        return Vocabulary(NUM_BYTES)
    tokenizer = _learned(texts, size) if saved is None else make_tokenizer(saved)
    return Vocabulary(tokenizer.get_vocab_size(), tokenizer)


def _learned(texts: Iterable[str], size: int) -> Any:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ResourceError(
            "tokens: bpe needs the package tokenizers. Install the extra [hf]: pip install"
            " 'gossamer[hf]', or use tokens: bytes."
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(texts, trainer)
    return GuardedTokenizer(tokenizer)

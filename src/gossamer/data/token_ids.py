# SPDX-License-Identifier: Apache-2.0
"""Texts as token ids: windows of a stream, sentences, padded batches, and vocabularies.

A decoder reads a text as one stream that is cut into windows of equal length; an encoder reads it
line by line. Legend: B batch, N samples, T tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from gossamer.data.files import Texts
from gossamer.errors import InputError, ResourceError
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, GuardedTokenizer, make_tokenizer

__all__ = [
    "draw",
    "make_vocabulary",
    "padded",
    "padded_batches",
    "sentences",
    "windows",
]

NUM_BYTES = 256


def windows(samples: Texts, tokenizer: Any, num_tokens: int) -> torch.Tensor:
    """The text as one stream of ids cut into windows int64 [N, num_tokens]; the rest is dropped."""
    if samples.ids_NT is not None:
        stream = samples.ids_NT.reshape(-1)
    else:
        stream = torch.tensor(tokenizer.encode(samples.stream).ids, dtype=torch.int64)
    num_windows = len(stream) // num_tokens
    if not num_windows:
        raise InputError(
            f"{samples.path}: holds {len(stream)} tokens, fewer than one window of {num_tokens}."
            " Give more text, or shorter windows (calibration.tokens)."
        )
    return stream[: num_windows * num_tokens].view(num_windows, num_tokens)


def sentences(texts: Sequence[str], tokenizer: Any, max_tokens: int) -> list[torch.Tensor]:
    """Ids of each text on its own, special tokens included, cut to `max_tokens`."""
    tokenizer.enable_truncation(max_tokens)
    try:
        encoded = tokenizer.encode_batch(list(texts))
    finally:
        tokenizer.no_truncation()
    return [torch.tensor(item.ids, dtype=torch.int64) for item in encoded]


def padded_batches(
    ids: Sequence[torch.Tensor], num_tokens: int
) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Texts of like length together, about `num_tokens` a batch: their numbers, and the inputs."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and len(ids[order[stop]]) * (stop + 1 - start) <= num_tokens:
            stop += 1
        members = order[start:stop]
        yield members, padded([ids[i] for i in members])
        start = stop


def padded(ids: Sequence[torch.Tensor], padding: int = 0) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask [B, T] of texts of different lengths."""
    width = max([1, *(len(row) for row in ids)])
    ids_BT = torch.full((len(ids), width), padding, dtype=torch.int64)
    keep_BT = torch.zeros(len(ids), width, dtype=torch.int64)
    for number, row in enumerate(ids):
        ids_BT[number, : len(row)] = row
        keep_BT[number, : len(row)] = 1
    return {"input_ids": ids_BT, "attention_mask": keep_BT}


def draw(total: int, wanted: int, seed: int) -> list[int]:
    """`wanted` of `total` numbers, without replacement, ascending; all if there are fewer."""
    if wanted >= total:
        return list(range(total))
    generator = torch.Generator().manual_seed(seed)
    return sorted(torch.randperm(total, generator=generator)[:wanted].tolist())


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
            return torch.from_numpy(np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64))
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
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return GuardedTokenizer(tokenizer)

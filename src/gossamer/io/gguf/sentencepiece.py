# SPDX-License-Identifier: Apache-2.0
"""Sentencepiece models in gguf files: pieces with scores, merged best first.

Of all neighbours whose union is a piece those with the best score are merged, the first of them
where there are several. `tokenizers` merges by rank, so pairs are ranked by the score of their
union. What is no piece is spelt in the pieces of its bytes.
"""

import math
from typing import Any

from gossamer.errors import ArtifactError

# Stands for a blank inside of pieces.
BLANK = "\u2581"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE = 1, 2, 4, 6


def sentencepiece_steps(
    settings: dict[str, Any], vocabulary: dict[str, int], where: str
) -> dict[str, Any]:
    """Normalizer, decoder and model of a tokenizer.json.

    Args:
        settings: of the file.
        vocabulary: its pieces and their numbers.
        where: the file, for errors.
    """
    scores = _numbers(settings, "scores", float, vocabulary, where)
    kinds = _numbers(settings, "token_type", int, vocabulary, where)
    prefix = settings.get("tokenizer.ggml.add_space_prefix", True)
    if type(prefix) is not bool:
        raise ArtifactError(
            f"{where}: tokenizer.ggml.add_space_prefix must be true or false, got"
            f" {ascii(prefix)[:40]}."
        )
    unknown = [piece for piece, kind in zip(vocabulary, kinds, strict=True) if kind == _UNKNOWN]
    missing = [name for name in _BYTES if name not in vocabulary]
    if missing and not unknown:
        raise ArtifactError(
            f"{where}: its pieces have no {missing[0]!r} and no piece for what is not known, so not"
            " every text could be written."
        )
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    back = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    before, behind = [], []
    if prefix:
        before = [{"type": "Prepend", "prepend": BLANK}]
        behind = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *behind]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, blanks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown[0] if unknown else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": not missing,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(vocabulary, scores, kinds),
        },
    }


def _merges(
    vocabulary: dict[str, int], scores: list[Any], kinds: list[Any]
) -> list[tuple[str, str]]:
    """Pairs of pieces whose union is a piece, those with the best scores first."""
    plain = {
        piece
        for piece, kind in zip(vocabulary, kinds, strict=True)
        if kind in (_NORMAL, _USER_DEFINED)
    }
    ranked = []
    for piece, score in zip(vocabulary, scores, strict=True):
        if piece not in plain:
            continue
        for at in range(1, len(piece)):
            first, second = piece[:at], piece[at:]
            if first in plain and second in plain:
                ranked.append((-score, vocabulary[piece], at, (first, second)))
    return [pair for *_, pair in sorted(ranked)]


def _numbers(
    settings: dict[str, Any], name: str, kind: type, vocabulary: dict[str, int], where: str
) -> list[Any]:
    """A setting with a number for every piece."""
    found: Any = settings.get(f"tokenizer.ggml.{name}")
    fits = isinstance(found, list) and len(found) == len(vocabulary)
    numbers: list[Any] = list(found) if fits else []
    fits = fits and all(type(n) is kind for n in numbers) and all(map(math.isfinite, numbers))
    if not fits:
        raise ArtifactError(
            f"{where}: tokenizer.ggml.{name} must have one finite number for each of"
            f" {len(vocabulary)} pieces."
        )
    return numbers

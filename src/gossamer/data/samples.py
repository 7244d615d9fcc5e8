# SPDX-License-Identifier: Apache-2.0
"""Calibration and evaluation data from a user's files: text, JSON lines, token tensors.

A decoder reads a text as one stream that is cut into windows of equal length; an encoder reads it
line by line. Legend: N samples, T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.data.sample_tables import (
    Row,
    json_rows,
    kind_of,
    label_in,
    pair_in,
    table_rows,
    text_in,
)
from gossamer.errors import InputError
from gossamer.io.safe_files.documents.text_bytes import decode_text
from gossamer.io.safe_files.tensors.tensor_file import read_tensors
from gossamer.io.safe_files.tensors.tensor_header import read_header
from gossamer.io.safe_files.tokenizer.guarded_tokenizer import TOKENIZER_FILE as TOKENIZER_FILE
from gossamer.io.safe_files.tokenizer.guarded_tokenizer import make_tokenizer as make_tokenizer
from gossamer.named_files import open_named, read_at_most, size_of

TEXT_SUFFIXES = (".txt", ".md", ".text")
TABLE_SUFFIXES = (".csv", ".tsv")
MAX_TEXT_BYTES = 1 << 30


@dataclass(frozen=True)
class Pair:
    """Two texts and how alike people find them."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Texts:
    """What a file held.

    Attributes:
        path: for messages.
        stream: the text as it stands.
        texts: one entry per line that is not blank.
        pairs: with text_a, text_b and score; their texts are in `texts` too.
        labels: a class per text; empty if there are none.
        ids_NT: token ids, if the file holds them instead of text.
    """

    path: Path
    stream: str = ""
    texts: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    ids_NT: torch.Tensor | None = None  # noqa: N815  (shape suffix)
    labels: tuple[int, ...] = ()


def read_samples(path: Path, *, labelled: bool = False) -> Texts:
    """What a .txt, .jsonl, .csv, .tsv or .safetensors file holds.

    Lines of a .jsonl file have "text" (or "sentence"), maybe with a "label", or "text_a", "text_b"
    and "score"; the first line of a table names such columns; a .safetensors file has a tensor
    `input_ids` [N, T]. Labels are looked at only if `labelled`.
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "there is no such file"
        raise InputError(f"{path}: {what}. Give a .txt, .jsonl, .csv, .tsv or .safetensors file.")
    if path.suffix == ".safetensors":
        return Texts(path, ids_NT=_read_ids(path))
    if path.suffix not in (*TEXT_SUFFIXES, *TABLE_SUFFIXES, ".jsonl"):
        raise InputError(
            f"{path}: expected a file that ends with {', '.join(TEXT_SUFFIXES)}, .jsonl, .csv, .tsv"
            " or .safetensors."
        )
    text = read_text(path)
    if path.suffix in TABLE_SUFFIXES:
        return _read_rows(path, table_rows(path, text), labelled)
    if path.suffix == ".jsonl":
        return _read_rows(path, json_rows(path, text), labelled)
    return Texts(path, text, tuple(line for line in text.splitlines() if line.strip()))


def check_scores(samples: Texts) -> None:
    """InputError if pairs cannot be ranked by their scores, because all of them are the same."""
    scores = {pair.score for pair in samples.pairs}
    if len(scores) == 1:
        raise InputError(
            f"{samples.path}: all {len(samples.pairs)} pairs have the score {scores.pop():g}, so no"
            " model can be told from another by them. Give pairs with different scores, or a file"
            " with texts alone."
        )


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
    ids: Sequence[torch.Tensor], num_tokens: int, padding: int = 0
) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Texts of like length together, about `num_tokens` a batch: their numbers, and the inputs."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and len(ids[order[stop]]) * (stop + 1 - start) <= num_tokens:
            stop += 1
        members = order[start:stop]
        start = stop
        yield members, padded([ids[i] for i in members], padding)


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


def read_text(path: Path) -> str:
    """The text of a file that is not empty; InputError says what else it is."""
    with open_named(path, InputError) as file:
        if size_of(file) > MAX_TEXT_BYTES:
            raise InputError(
                f"{path}: is larger than {MAX_TEXT_BYTES >> 20} MiB. Give a part of it."
            )
        raw = read_at_most(file, MAX_TEXT_BYTES, str(path), InputError)
    text = decode_text(raw, str(path))
    if not text.strip():
        raise InputError(f"{path}: is empty; expected some text.")
    return text


def _read_rows(path: Path, rows: Iterator[Row], labelled: bool) -> Texts:
    """Pairs where a row has two texts and a score; all texts have a label, or none has."""
    texts: list[str] = []
    pairs: list[Pair] = []
    labels: list[int] = []
    for number, row in rows:
        where, kind = f"{path}:{number}", kind_of(list(row))
        if kind == "pair":
            pair = Pair(*pair_in(row, where))
            pairs.append(pair)
            texts += [pair.first, pair.second]
            continue
        texts.append(text_in(row, None, where))
        if labelled and kind == "label":
            labels.append(label_in(row, where))
    if labels and (pairs or len(labels) != len(texts)):
        raise InputError(f"{path}: {len(labels)} of {len(texts)} texts have a label; expected all.")
    return Texts(path, "\n".join(texts), tuple(texts), tuple(pairs), labels=tuple(labels))


def _read_ids(path: Path) -> torch.Tensor:
    with open_named(path, InputError) as file:
        header = read_header(file, size_of(file), str(path))
        if "input_ids" not in header.tensors:
            raise InputError(
                f"{path}: expected a tensor input_ids [samples, tokens], found"
                f" {', '.join(sorted(header.tensors)[:5]) or 'none'}."
            )
        ids = read_tensors(file, header, str(path))["input_ids"]
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32) or not ids.numel():
        raise InputError(
            f"{path}: input_ids must be int64 [samples, tokens] and not empty, got {ids.dtype}"
            f" {list(ids.shape)}."
        )
    return ids.long()

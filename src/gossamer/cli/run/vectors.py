# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts as a file, piece by piece: a .npy matrix, or JSON lines with the texts.

Legend: N texts, D features.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from gossamer.errors import InputError
from gossamer.io.safe_files.directories import whole_file

SUFFIXES = (".npy", ".jsonl")
WriteVectors = Callable[[Sequence[str], torch.Tensor], None]


@contextmanager
def open_vectors(path: Path, count: int) -> Iterator[WriteVectors]:
    """Give a function that appends texts with their float32 vectors [N, D].

    The file appears whole when the block ends without error; what was there before stays until
    then.

    Args:
        path: ends with .npy or .jsonl.
        count: vectors of all calls together.
    """
    check_suffix(path)
    with whole_file(path) as file:
        yield partial(_add_rows if path.suffix == ".npy" else _add_lines, file, count)


def check_suffix(path: Path) -> None:
    """InputError unless `path` names a kind of file that vectors can be written to."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a file that ends with {' or '.join(SUFFIXES)}.")
    if path.is_dir():
        raise InputError(f"{path}: is a directory; expected a file.")


def json_lines(texts: Sequence[str], vectors_ND: torch.Tensor) -> Iterator[str]:
    """One JSON object per text; nine digits give every float32 back."""
    _check_finite(vectors_ND)
    for text, vector in zip(texts, vectors_ND.tolist(), strict=True):
        numbers = ",".join(f"{value:.9g}" for value in vector)
        yield f'{{"text": {json.dumps(text)}, "vector": [{numbers}]}}\n'


def _add_lines(file: BinaryIO, _: int, texts: Sequence[str], vectors_ND: torch.Tensor) -> None:
    file.write("".join(json_lines(texts, vectors_ND)).encode("ascii"))


def _add_rows(file: BinaryIO, count: int, _: Sequence[str], vectors_ND: torch.Tensor) -> None:
    _check_finite(vectors_ND)
    if not file.tell():
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, vectors_ND.shape[1])}
        np.lib.format.write_array_header_1_0(file, header)
    file.write(vectors_ND.numpy().astype("<f4").tobytes())


def _check_finite(vectors_ND: torch.Tensor) -> None:
    if not bool(torch.isfinite(vectors_ND).all()):
        raise InputError(
            "the model gives vectors that are NaN or infinite, so nothing was written. Its weights"
            " are damaged, or its activations overflow."
        )

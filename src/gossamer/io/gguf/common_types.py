# SPDX-License-Identifier: Apache-2.0
"""The types that most gguf files have, as floats: as the package gguf does, in a third of its time.

Legend: B blocks.
"""

from typing import Any

import numpy as np


def numbers_of(raw: bytes, code: int) -> Any:
    """The numbers of a tensor, float32; None for a type that the package gguf has to read.

    Args:
        raw: its bytes in the file.
        code: of its type.
    """
    read = _READERS.get(code)
    with np.errstate(all="ignore"):  # a scale may be infinite: what is stored is what is loaded
        return None if read is None else read(np.frombuffer(raw, np.uint8))


def _floats(raw: Any) -> Any:
    return raw.view(np.float32).copy()


def _halves(raw: Any) -> Any:
    return raw.view(np.float16).astype(np.float32)


def _scales(blocks_B: Any, first: int) -> Any:
    return blocks_B[:, first : first + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(codes_B16: Any, scales_B: Any, lowest: int) -> Any:
    """The low halves of 16 bytes, then the high ones, times a scale."""
    values = np.empty((len(codes_B16), 2, 16), np.float32)
    for half, codes in enumerate((codes_B16 & 15, codes_B16 >> 4)):
        np.multiply(codes.view(np.int8) + np.int8(lowest), scales_B, out=values[:, half])
    return values


def _q4_0(raw: Any) -> Any:
    blocks = raw.reshape(-1, 18)
    return _nibbles(blocks[:, 2:], _scales(blocks, 0), -8)


def _q4_1(raw: Any) -> Any:
    blocks = raw.reshape(-1, 20)
    values = _nibbles(blocks[:, 4:], _scales(blocks, 0), 0)
    values += _scales(blocks, 2)[:, :, None]
    return values


def _q8_0(raw: Any) -> Any:
    blocks = raw.reshape(-1, 34)
    return blocks[:, 2:].view(np.int8) * _scales(blocks, 0)


# By the number of the type, see `header.TENSOR_TYPES`.
_READERS = {0: _floats, 1: _halves, 2: _q4_0, 3: _q4_1, 8: _q8_0}

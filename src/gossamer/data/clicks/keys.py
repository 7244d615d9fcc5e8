# SPDX-License-Identifier: Apache-2.0
"""Texts as 64-bit keys, a column at a time: FNV-1a over code points, then a bijective mix.

Two texts share a key with a chance of 2^-64, so a vocabulary of ten million texts has a collision
with a chance below 10^-5. Keys are the same on every machine and in every version.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_OFFSET, _PRIME = 0xCBF29CE484222325, 0x100000001B3
_MASK = 2**64 - 1
# Texts up to here are hashed side by side; longer ones, which are rare, one by one.
_WIDE = 48


def text_keys(cells: Sequence[str]) -> Keys:
    """The key of every text."""
    count = len(cells)
    lengths = np.fromiter(map(len, cells), np.int64, count)
    long = np.flatnonzero(lengths > _WIDE)
    if len(long):
        short = list(cells)
        for place in long.tolist():
            short[place] = ""
        keys = text_keys(short)
        for place in long.tolist():
            keys[place] = mixed(np.array([_fnv(cells[place])], np.uint64))[0]
        return keys
    widest = int(lengths.max(initial=0))
    state = np.full(count, _OFFSET, np.uint64)
    if widest:
        letters = np.array(cells, dtype=f"<U{widest}").view("<u4").reshape(count, widest)
        for place, column in enumerate(np.ascontiguousarray(letters.T)):
            further = (state ^ column.astype(np.uint64)) * np.uint64(_PRIME)
            state = np.where(place < lengths, further, state)
    return mixed(state)


def crossed_keys(columns: Sequence[Keys]) -> Keys:
    """The key of every combination; the order of columns counts."""
    state = columns[0]
    for other in columns[1:]:
        state = mixed(state * np.uint64(_PRIME) ^ other)
    return state


def mixed(state: Keys) -> Keys:
    """splitmix64's last step, a bijection: every bit depends on all others."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _fnv(text: str) -> int:
    state = _OFFSET
    for letter in text:
        state = (state ^ ord(letter)) * _PRIME & _MASK
    return state

# SPDX-License-Identifier: Apache-2.0
"""Keys of texts: a column at a time gives what one text at a time gives, on every path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.data.clicks.keys import crossed_keys, text_keys

MASK = 2**64 - 1


def oracle(text):
    state = 0xCBF29CE484222325
    for letter in text:
        state = ((state ^ ord(letter)) * 0x100000001B3) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@given(st.lists(st.text(max_size=60), max_size=20))
def test_a_column_is_its_texts(texts):
    assert text_keys(texts).tolist() == [oracle(text) for text in texts]


@pytest.mark.parametrize(
    "texts", [[], [""], ["", "a", "a" * 48, "a" * 49, "a" * 5000, "a\0", "a\0\0"]]
)
def test_edges(texts):
    found = text_keys(texts)
    assert found.dtype == np.uint64
    assert found.tolist() == [oracle(text) for text in texts]
    assert len(set(found.tolist())) == len(texts)


def test_crossing_knows_the_order_and_the_border():
    one, two = text_keys(["ab", "a"]), text_keys(["c", "bc"])
    assert len(set(crossed_keys([one, two]).tolist() + crossed_keys([two, one]).tolist())) == 4


def test_hundred_thousand_texts_share_no_key_and_fill_a_table_evenly():
    keys = text_keys([f"{number:08x}" for number in range(100_000)])
    assert len(np.unique(keys)) == 100_000
    counts = np.bincount((keys % np.uint64(100)).astype(int), minlength=100)
    # 1000 expected; six standard deviations.
    assert counts.min() > 800
    assert counts.max() < 1200

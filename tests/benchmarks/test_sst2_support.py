# SPDX-License-Identifier: Apache-2.0
"""SST-2 of the benchmarks: what is trained on shares no sentence with what is measured on."""

import lzma

from support import sst2

SENTENCE = " ".join(f"w{i}" for i in range(20))


def write(folder, split, rows):
    (folder / "sst2").mkdir(exist_ok=True)
    text = "sentence\tlabel\n" + "".join(f"{words} \t{label}\n" for words, label in rows)
    (folder / "sst2" / f"{split}.tsv.xz").write_bytes(lzma.compress(text.encode()))


def test_texts_that_share_five_words_are_left_out_of_training(tmp_path):
    other = " ".join(f"v{i}" for i in range(12))
    four_shared = f"{other} w3 w4 w5 w6"
    five_shared = f"{other} w3 w4 w5 w6 w7"
    write(tmp_path, "dev", [(SENTENCE, 1), ("too short", 0)])
    write(tmp_path, "train", [(four_shared, 1), (five_shared, 0), (other, 0), ("short", 1)])
    train, dev = sst2.splits(tmp_path)
    assert dev == [(tuple(SENTENCE.split()), 1)]
    assert train == [(tuple(four_shared.split()), 1), (tuple(other.split()), 0)]


class Words:
    """A tokenizer: a word is the number in it."""

    def encode_batch(self, texts):
        return [type("E", (), {"ids": [int(w[1:]) + 1 for w in t.split()]})() for t in texts]


def test_batches_stay_in_order_or_are_sorted_by_length():
    texts = [(tuple(f"w{i}" for i in range(n)), n % 2) for n in (3, 1, 2)]
    natural = sst2.make_batches(texts, Words(), 2, sort=False)
    assert natural[0]["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert natural[1]["input_ids"].tolist() == [[1, 2]]
    by_length = sst2.make_batches(texts, Words(), 2)
    assert by_length[0]["input_ids"].tolist() == [[1, 0], [1, 2]]
    assert [batch["label"].tolist() for batch in by_length] == [[1, 0], [1]]

# SPDX-License-Identifier: Apache-2.0
"""Recall of passages on WikiText-2, a text that nothing in these benchmarks is trained on.

The first sentence of a paragraph asks for the rest of it; other paragraphs of the same article are
among those it has to be told from.

Legend: N passages, D width.
"""

import lzma

import torch

from gossamer.data.token_ids import sentences
from gossamer.runs.calibration import embed

MOST, TOKENS = 1000, 128
# Words of a question, and at least of the rest.
_QUESTION, _REST = range(6, 61), 20
# How the file writes what was one word.
_JOINED = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."))


def read_passages(folder, most=MOST):
    """(questions, passages): the same number of each, at most `most`, spread over the file."""
    text = lzma.decompress((folder / "wikitext2" / "valid.txt.xz").read_bytes()).decode("utf-8")
    pairs = [pair for pair in map(_parts, text.splitlines()) if pair is not None]
    count = min(most, len(pairs))
    chosen = [pairs[i * len(pairs) // count] for i in range(count)]
    return [pair[0] for pair in chosen], [pair[1] for pair in chosen]


def _parts(line):
    """First sentence and the rest of a paragraph; None for titles and short ones."""
    line = line.strip()
    for written, meant in _JOINED:
        line = line.replace(written, meant)
    first, end, rest = line.partition(" . ")
    is_fit = len(first.split()) in _QUESTION and len(rest.split()) >= _REST
    return (f"{first}{end}".strip(), rest) if is_fit and not line.startswith("=") else None


def recall(model, questions, passages, tokenizer, at=(1, 10)):
    """Per cent of questions whose own passage is among the k nearest, for every k of `at`."""
    with torch.inference_mode():
        asked_ND, found_ND = (
            embed(model, sentences(texts, tokenizer, TOKENS)) for texts in (questions, passages)
        )
    return recall_of(asked_ND @ found_ND.T, at)


def recall_of(cosines_NN, at):
    """The same from cosines; a passage that ties with the right one counts as nearer."""
    own = cosines_NN.diagonal().unsqueeze(1)
    nearer = (cosines_NN >= own).sum(dim=1) - 1
    return {k: 100 * float((nearer < k).float().mean()) for k in at}

# SPDX-License-Identifier: Apache-2.0
"""STS-B with MiniLM: pairs, batches sorted by length, the loss and the score.

Legend: P pairs, B pairs of a batch, T tokens, D width.
"""

import csv
import io
import lzma

import torch
from torch import nn

from gossamer.runs.calibration import rank_correlation


def read_pairs(folder, split):
    """(first sentence, second sentence, score / 5) of `train` or `dev`."""
    text = lzma.decompress((folder / "stsb" / f"sts-{split}.csv.xz").read_bytes()).decode("utf-8")
    rows = csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(row[5], row[6], float(row[4]) / 5) for row in rows]


def make_batches(pairs, tokenizer, size=32):
    """Batches of pairs of like length; both sentences of a batch are one input."""
    first, second = (tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1))
    tokens = [
        [[i for i, k in zip(e.ids, e.attention_mask, strict=True) if k] for e in side]
        for side in (first, second)
    ]
    order = sorted(range(len(pairs)), key=lambda i: max(len(tokens[0][i]), len(tokens[1][i])))
    batches = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows = [torch.tensor(side[i]) for side in tokens for i in chosen]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        keep = nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
        scores = torch.tensor([pairs[i][2] for i in chosen])
        batches.append({"input_ids": ids, "attention_mask": keep, "score": scores})
    return batches


def mean_length(batches):
    """Tokens per sentence without padding."""
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    return tokens / sum(len(batch["attention_mask"]) for batch in batches)


def cosines(model, batch):
    """Cosine [B] of every pair: mean over its tokens, as the model was trained."""
    keep = batch["attention_mask"]
    hidden = model(input_ids=batch["input_ids"], attention_mask=keep).last_hidden_state
    weight = keep.unsqueeze(-1).to(hidden.dtype)
    pooled = nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)
    first, second = pooled.chunk(2)
    return (first * second).sum(1)


def loss(model, batch):
    """Mean squared error of the cosine against score / 5."""
    return (cosines(model, batch) - batch["score"]).square().mean()


def keep(batch):
    """Tokens that are no padding."""
    return batch["attention_mask"]


def spearman(model, batches):
    """Rank correlation x 100 of cosines and scores."""
    with torch.inference_mode():
        found = torch.cat([cosines(model, batch) for batch in batches])
    wanted = torch.cat([batch["score"] for batch in batches])
    return 100 * rank_correlation(found, wanted)

# SPDX-License-Identifier: Apache-2.0
"""SST-2 with an encoder and a classifier on its first token: phrases, batches, loss and accuracy.

Legend: B phrases of a batch, T tokens, D width.
"""

import csv
import io
import lzma

import torch
from torch import nn


class Classifier(nn.Module):
    """Two logits from the first token of a BERT model."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, 2)

    def forward(self, input_ids, attention_mask):
        """Logits [B, 2]."""
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return self.head(output.last_hidden_state[:, 0])


def read_phrases(folder, split):
    """(phrase, label) of `train` or `dev`."""
    text = lzma.decompress((folder / "sst2" / f"{split}.tsv.xz").read_bytes()).decode("utf-8")
    rows = csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(row["sentence"], int(row["label"])) for row in rows]


def make_batches(phrases, tokenizer, size=32, by_length=True):
    """Padded batches; `by_length` puts phrases of like length together."""
    encoded = tokenizer.encode_batch([phrase for phrase, _ in phrases])
    ids = [torch.tensor(one.ids[: sum(one.attention_mask)]) for one in encoded]
    order = list(range(len(ids)))
    if by_length:
        order.sort(key=lambda i: len(ids[i]))
    batches = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows = [ids[i] for i in chosen]
        ones = [torch.ones_like(row) for row in rows]
        batches.append(
            {
                "input_ids": nn.utils.rnn.pad_sequence(rows, batch_first=True),
                "attention_mask": nn.utils.rnn.pad_sequence(ones, batch_first=True),
                "label": torch.tensor([phrases[i][1] for i in chosen]),
            }
        )
    return batches


def logits(model, batch):
    """What the model says about a batch."""
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])


def loss(model, batch):
    """Cross entropy."""
    return nn.functional.cross_entropy(logits(model, batch), batch["label"])


def accuracy(model, batches):
    """Percent right."""
    with torch.inference_mode():
        right = sum(int((logits(model, b).argmax(1) == b["label"]).sum()) for b in batches)
    return 100 * right / sum(len(batch["label"]) for batch in batches)

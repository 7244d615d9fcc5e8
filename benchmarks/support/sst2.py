# SPDX-License-Identifier: Apache-2.0
"""SST-2 with MiniLM: texts as long as sentences, batches, the classifier, its loss and its score.

Both files of the folder are phrases cut from the GLUE training set, so phrases of one sentence are
in both. Texts are measured on if they have `DEV_WORDS` words, and no text is trained on that shares
five words in a row with one of them.

Legend: B batch, T tokens, C classes.
"""

import copy
import lzma

import torch
from torch import nn
from transformers import BertForSequenceClassification

TRAIN_WORDS, DEV_WORDS, RUN = 12, 16, 5


def read_texts(folder, split):
    """(words, label) of `train` or `dev`."""
    path = folder / "sst2" / f"{split}.tsv.xz"
    lines = lzma.decompress(path.read_bytes()).decode("utf-8").splitlines()[1:]
    rows = (line.rsplit("\t", 1) for line in lines)
    return [(tuple(text.split()), int(label)) for text, label in rows]


def splits(folder):
    """Texts to train on and texts to measure on, which share no sentence."""
    dev = [row for row in read_texts(folder, "dev") if len(row[0]) >= DEV_WORDS]
    seen = {run for words, _ in dev for run in _runs(words)}
    train = [
        row
        for row in read_texts(folder, "train")
        if len(row[0]) >= TRAIN_WORDS and seen.isdisjoint(_runs(row[0]))
    ]
    return train, dev


def _runs(words):
    return zip(*(words[start:] for start in range(RUN)), strict=False)


def make_batches(texts, tokenizer, size, *, sort=True):
    """Batches of texts, of like length unless they are to stay in their order."""
    tokens = [e.ids for e in tokenizer.encode_batch([" ".join(words) for words, _ in texts])]
    order = range(len(texts))
    if sort:
        order = sorted(order, key=lambda i: len(tokens[i]))
    batches = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows = [torch.tensor(tokens[i]) for i in chosen]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        keep = nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
        labels = torch.tensor([texts[i][1] for i in chosen])
        batches.append({"input_ids": ids, "attention_mask": keep, "label": labels})
    return batches


def classifier(encoder):
    """The encoder with a new head on [CLS]; the pooler is the encoder's."""
    config = copy.deepcopy(encoder.config)
    config.num_labels = 2
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(encoder.state_dict())
    return model


def logits(model, batch):
    """[B, C]."""
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


def loss(model, batch):
    """Cross-entropy with the label."""
    return nn.functional.cross_entropy(logits(model, batch), batch["label"])


def accuracy(model, batches):
    """Right answers in a hundred."""
    with torch.inference_mode():
        right = sum(
            int((logits(model, batch).argmax(dim=1) == batch["label"]).sum()) for batch in batches
        )
    return 100 * right / sum(len(batch["label"]) for batch in batches)

# SPDX-License-Identifier: Apache-2.0
"""A tiny encoder, its tokenizer and data, and a search that takes seconds."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, BertModel

from gossamer.search import forecast, rungs, trial

WORDS = ("red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "eats", "fast")


def tiny_tokenizer():
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{word: 2 + i for i, word in enumerate(WORDS)}}
    made = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def tiny_encoder(classes=0):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=12, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=160, initializer_range=0.5,
        **({"num_labels": classes} if classes else {}),
    )  # fmt: skip
    return (BertForSequenceClassification if classes else BertModel)(config).eval()


def random_lines(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        " ".join(WORDS[i] for i in torch.randint(0, 10, (5,), generator=generator))
        for _ in range(count)
    ]


def make_quick(monkeypatch, steps=((3, 2), (4, 1))):
    """Few steps, short timings, and kernels by rule: measured ones give other last bits."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    monkeypatch.setattr(rungs, "RUNGS", steps)
    monkeypatch.setattr(rungs, "_TOKEN_STEPS", 2)
    monkeypatch.setattr(trial, "_TIMED_SECONDS", 0.01)
    monkeypatch.setattr(forecast, "_TIMED_SECONDS", 0.01)

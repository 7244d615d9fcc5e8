# SPDX-License-Identifier: Apache-2.0
"""The packaged MiniLM sentence encoder: find it, load it, embed with it, compare two of it.

Legend: B batch, T tokens, D width, N sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.cli.demo_models import DEMO_MODELS, demo_path
from gossamer.errors import ResourceError
from gossamer.io import load_pretrained

PACKAGE = DEMO_MODELS["minilm"].package
MAX_TOKENS = 128


@dataclass(frozen=True)
class MiniLM:
    """The dense encoder, its tokenizer and the directory both came from."""

    model: nn.Module
    tokenizer: Any
    directory: Path


def load_minilm() -> MiniLM:
    """The model inside the installed package; nothing is downloaded."""
    directory = demo_path("minilm")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ResourceError(
            "tokenizers is not installed. Install the extra [demo]: pip install 'gossamer[demo]'."
        ) from error
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return MiniLM(load_pretrained(directory), tokenizer, directory)


def embed(
    model: nn.Module, tokenizer: Any, sentences: Sequence[str], batch: int = 64
) -> torch.Tensor:
    """Unit vectors [N, D]: mean over the tokens that are no padding, as the model was trained."""
    parts = []
    for start in range(0, len(sentences), batch):
        encoded = tokenizer.encode_batch(list(sentences[start : start + batch]))
        ids_BT = torch.tensor([item.ids for item in encoded])
        keep_BT = torch.tensor([item.attention_mask for item in encoded])
        with torch.inference_mode():
            hidden_BTD = model(input_ids=ids_BT, attention_mask=keep_BT).last_hidden_state
            keep_BT1 = keep_BT.unsqueeze(-1).to(hidden_BTD.dtype)
            pooled_BD = (hidden_BTD * keep_BT1).sum(1) / keep_BT1.sum(1)
            parts.append(nn.functional.normalize(pooled_BD, dim=1))
    return torch.cat(parts)


def agreement(first_ND: torch.Tensor, second_ND: torch.Tensor) -> float:
    """Spearman rank correlation of the pairwise cosine similarities of two sets of embeddings.

    1: both models order all pairs of sentences alike. 0: no relation. It is not accuracy.
    """
    pairs = torch.triu_indices(len(first_ND), len(first_ND), offset=1)
    ranks = [
        average_ranks((vectors.double() @ vectors.double().T)[pairs[0], pairs[1]])
        for vectors in (first_ND, second_ND)
    ]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def average_ranks(values: torch.Tensor) -> torch.Tensor:
    """Rank of every value in ascending order, float64; equal values share their mean rank."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: torch.Tensor = (last - (counts.double() - 1) / 2)[inverse]
    return ranks

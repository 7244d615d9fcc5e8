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

from gossamer.cli.models import DEMO_MODELS, demo_path
from gossamer.data import sentences
from gossamer.io import load_pretrained, read_beside
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.runs import embed as mean_embedding

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
    tokenizer = make_tokenizer(read_beside(directory).get(TOKENIZER_FILE))
    return MiniLM(load_pretrained(directory), tokenizer, directory)


def embed(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """Unit vectors [N, D], as the model was trained to give them."""
    return mean_embedding(model, sentences(texts, tokenizer, MAX_TOKENS))

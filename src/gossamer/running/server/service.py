# SPDX-License-Identifier: Apache-2.0
"""What a model can do for clients: embed, classify, or write."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from gossamer.nn.families import is_decoder
from gossamer.running.layers import compile as compile_model
from gossamer.running.text import Classifier, Embedder, Pooling, Writer, make_writer

# Tokens of a call that kernels are chosen for: a sentence and a full batch.
_ENCODER_TOKENS = (32, 1024)


@dataclass(frozen=True)
class Service:
    """A model under a name; what it cannot do is None."""

    name: str
    embedder: Embedder | None = None
    classifier: Classifier | None = None
    writer: Writer | None = None


def make_service(
    model: nn.Module,
    beside: Mapping[str, bytes],
    name: str,
    *,
    precision: str = "fp32",
    pooling: Pooling = "mean",
) -> Service:
    """Compile `model` in place and say what it serves.

    Args:
        model: of transformers.
        beside: files beside its weights, by name; tokenizer.json is needed.
        name: what clients call it.
        precision: the lowest one that kernels may compute in.
        pooling: of embeddings.
    """
    if is_decoder(model):
        return Service(name, writer=make_writer(model, beside, precision=precision))
    fast: Any = compile_model(model, tokens=_ENCODER_TOKENS, inplace=True, precision=precision)
    classifier = Classifier(fast, beside) if Classifier.fits(fast) else None
    return Service(name, Embedder(fast, beside, pooling=pooling), classifier)

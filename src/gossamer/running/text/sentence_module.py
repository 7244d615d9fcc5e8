# SPDX-License-Identifier: Apache-2.0
"""An encoder as a module of sentence-transformers, so that its tools run on it.

`SentenceModule` is the one module of a `SentenceTransformer`: it reads texts, runs the encoder and
pools. `sentence_transformer` makes the whole of a path.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, ResourceError
from gossamer.io import load, read_beside
from gossamer.io.huggingface.sentences import Sentences, sentences_of
from gossamer.running.layers import compile as compile_model
from gossamer.running.text.embedding import Embedder

__all__ = ["SentenceModule", "sentence_transformer"]

# Tokens of a call that kernels are chosen for: a sentence and a full batch.
_TOKENS = (32, 1024)


class SentenceModule(nn.Module):
    """Texts to vectors, as `SentenceTransformer(modules=[...])` calls it.

    Args:
        model: an encoder of transformers, compiled or not.
        beside: files beside its weights, by name; tokenizer.json is needed.
    """

    modalities = ("text",)

    def __init__(self, model: nn.Module, beside: Mapping[str, bytes]) -> None:
        super().__init__()
        self.model = model
        # Prompts are set by SentenceTransformer, which knows what is asked for.
        self._embedder = Embedder(model, beside, prompt="")
        self.told = sentences_of(beside) or Sentences("mean", normalise=True)

    @property
    def max_seq_length(self) -> int:
        """Tokens of a text that are read."""
        return self._embedder.tokens.max_tokens

    @property
    def tokenizer(self) -> Any:
        """Of the package tokenizers."""
        return self._embedder.tokens.tokenizer

    def get_embedding_dimension(self) -> int:
        """Numbers of a vector."""
        config: Any = self.model.config
        return int(config.hidden_size)

    get_sentence_embedding_dimension = get_embedding_dimension

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Token numbers of texts, those of a batch padded to one length."""
        texts = list(inputs)
        if not all(isinstance(text, str) for text in texts):
            raise InputError("SentenceModule: takes texts alone, no pairs, images or sound.")
        if prompt and not self.told.pools_prompt:
            raise InputError(
                "SentenceModule: this model leaves the tokens of prompts out of its pooling, which"
                " is not computed here. Set no prompt."
            )
        ids, _ = self._embedder.tokens.cut([(prompt or "") + text for text in texts])
        return {"token_ids": ids}

    def tokenize(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        """As versions before 6 call it."""
        return self.preprocess(texts)

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The same with `sentence_embedding` [B, D]."""
        with torch.inference_mode():
            return {**features, "sentence_embedding": self._embedder.vectors(features["token_ids"])}


def sentence_transformer(path: str, *, precision: str = "fp32") -> Any:
    """A `SentenceTransformer` that runs the model at `path` on kernels chosen here.

    Args:
        path: an artifact, or a local directory of transformers or sentence-transformers.
        precision: the lowest one that kernels may compute in.
    """
    if find_spec("sentence_transformers") is None:
        raise ResourceError(
            "sentence-transformers is not installed. Install it: pip install sentence-transformers."
        )
    from sentence_transformers import SentenceTransformer

    fast = compile_model(load(path), tokens=_TOKENS, inplace=True, precision=precision)
    module = SentenceModule(fast, read_beside(path))
    return SentenceTransformer(
        modules=[module],
        prompts=dict(module.told.prompts),
        default_prompt_name=module.told.default_prompt or None,
        device="cpu",
    )

# SPDX-License-Identifier: Apache-2.0
"""Texts to vectors, one per text from the last hidden state of an encoder, or to labels.

Legend: N texts, B of them in a batch, T padded tokens, D features, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from gossamer.data.token_ids import padded
from gossamer.errors import InputError
from gossamer.io.huggingface.sentences import POOLINGS, Pooling, Sentences, sentences_of
from gossamer.nn.families.text import num_positions
from gossamer.running.text.special_tokens import TextTokens

# Batches that are sorted by length together: enough for equal lengths, few enough to stream.
_SORTED_BATCHES = 64
_CLASS = "ForSequenceClassification"


@dataclass(frozen=True)
class Encoded:
    """Some texts of a longer list, in their order.

    Attributes:
        vectors: float32 [N, D].
        num_tokens: of these texts, special ones included.
        num_cut: texts that were longer than the model can read.
    """

    vectors: torch.Tensor
    num_tokens: int
    num_cut: int


class Embedder:
    """An encoder and its tokenizer. May be called from several threads.

    What is not given is as the files of sentence-transformers beside the model say: pooling,
    length of vectors, most tokens, the prompt. Without them: "mean", length 1, all positions, none.

    Args:
        model: of transformers, compiled or not; of one with a head, the encoder is used.
        beside: files beside its weights, by name; tokenizer.json is needed.
        pooling: "mean" of all tokens, "cls", the first one, or another of `POOLINGS`.
        normalise: give vectors of length 1.
        max_tokens: cut or refuse texts that are longer.
        prompt: name of the prompt that is set in front of texts; "" for none.
        special_tokens: read special tokens where texts spell them; else they are text.
    """

    def __init__(
        self,
        model: nn.Module,
        beside: Mapping[str, bytes],
        *,
        pooling: Pooling | None = None,
        normalise: bool | None = None,
        max_tokens: int | None = None,
        prompt: str | None = None,
        special_tokens: bool = False,
    ) -> None:
        if pooling is not None and pooling not in POOLINGS:
            raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}.")
        if getattr(model, "config", None) is None or not hasattr(model, "base_model"):
            raise InputError(
                f"{type(model).__name__}: is no transformers model, so there is no telling its"
                " hidden states. Expected an encoder such as BertModel."
            )
        self._encoder: Any = model.base_model
        told = sentences_of(beside) or Sentences("mean", normalise=True)
        self.tokens = TextTokens(
            beside,
            model.config,
            max_tokens or _within(told.max_tokens, model.config),
            prefix=told.prompt(prompt),
            lower=told.lower,
        )
        self._pooling = pooling or told.pooling
        self._normalise = told.normalise if normalise is None else normalise
        self._special_tokens = special_tokens

    def __call__(self, texts: Sequence[str], batch: int = 32) -> torch.Tensor:
        """Vectors float32 [N, D]; texts that are too long are cut."""
        parts = [part.vectors for part in self.encode(texts, batch)]
        return torch.cat(parts) if parts else torch.zeros(0, self._encoder.config.hidden_size)

    def encode(self, texts: Sequence[str], batch: int = 32) -> Iterator[Encoded]:
        """The same piece by piece; inside a piece, texts of like length share a batch."""
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}.")
        for start in range(0, len(texts), batch * _SORTED_BATCHES):
            some = texts[start : start + batch * _SORTED_BATCHES]
            ids, num_cut = self.tokens.cut(some, special_tokens=self._special_tokens)
            order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
            runs = [
                self.vectors([ids[i] for i in order[first : first + batch]])
                for first in range(0, len(ids), batch)
            ]
            places = torch.tensor(order).argsort()
            yield Encoded(torch.cat(runs)[places], sum(map(len, ids)), num_cut)

    def vectors(self, ids: Sequence[torch.Tensor]) -> torch.Tensor:
        """Vectors float32 [B, D] of token numbers, in one call of the model."""
        inputs = padded(ids, self.tokens.padding)
        with torch.inference_mode():
            hidden_BTD = self._encoder(**inputs).last_hidden_state
            pooled_BD = pool(hidden_BTD, inputs["attention_mask"], self._pooling)
            return normalize(pooled_BD, dim=1) if self._normalise else pooled_BD


def pool(
    hidden_BTD: torch.Tensor, keep_BT: torch.Tensor, pooling: Pooling = "mean"
) -> torch.Tensor:
    """One vector float32 [B, D] per text; padding does not count."""
    if pooling == "cls":
        return hidden_BTD[:, 0].float()
    if pooling == "lasttoken":
        last_B = keep_BT.sum(1) - 1
        return hidden_BTD[torch.arange(len(last_B)), last_B].float()
    if pooling == "max":
        return hidden_BTD.masked_fill(keep_BT.unsqueeze(-1) == 0, -torch.inf).amax(1).float()
    weight_BT = keep_BT.to(hidden_BTD.dtype)
    if pooling == "weightedmean":
        weight_BT = weight_BT * torch.arange(1, keep_BT.shape[1] + 1)
    total_B1 = weight_BT.sum(1, keepdim=True)
    if pooling == "mean_sqrt_len_tokens":
        total_B1 = total_B1.sqrt()
    return ((hidden_BTD * weight_BT.unsqueeze(-1)).sum(1) / total_B1).float()


def _within(max_tokens: int | None, config: Any) -> int | None:
    """A length that a file says, unless the model has fewer positions."""
    return None if max_tokens is None else min(max_tokens, num_positions(config))


class Classifier:
    """A classification model of transformers and its tokenizer. May be called from threads.

    Scores are chances that add up to 1 over the classes; of a multi-label model, a chance for each;
    of a model with one output, the number itself.

    Args:
        model: compiled or not.
        beside: files beside its weights, by name; tokenizer.json is needed.
    """

    def __init__(self, model: nn.Module, beside: Mapping[str, bytes]) -> None:
        if not self.fits(model):
            raise InputError(f"{type(model).__name__}: expected a model that ends with {_CLASS}.")
        config: Any = model.config
        self._model = model
        self.tokens = TextTokens(beside, config)
        self.labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
        self._several = config.problem_type == "multi_label_classification"

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether `model` gives one row of class logits per text."""
        return type(model).__name__.endswith(_CLASS)

    def scores(self, ids: Sequence[torch.Tensor]) -> torch.Tensor:
        """Scores float32 [B, C] of token numbers, in one call of the model."""
        with torch.inference_mode():
            logits_BC: torch.Tensor = self._model(**padded(ids, self.tokens.padding)).logits.float()
            if self._several:
                return torch.sigmoid(logits_BC)
            return logits_BC if len(self.labels) == 1 else logits_BC.softmax(dim=1)

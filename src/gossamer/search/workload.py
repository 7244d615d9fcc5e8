# SPDX-License-Identifier: Apache-2.0
"""What a search works with: a model, data in three parts, a measure of quality, an input to time.

The search trains and calibrates on the first part, chooses by the second and sees the third once,
at the end: the figure that is reported is from data nothing was chosen by.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.samples import Texts
from gossamer.recipes.calibration import Quality, is_decoder, quality_of
from gossamer.recipes.schema import Calibration

# Parts of the data to choose by and to report, where the user does not give files for them.
_CHOOSE, _REPORT = 0.15, 0.15
_MIN_SAMPLES = 20
_SEED = 0


@dataclass(frozen=True)
class Workload:
    """One search.

    Attributes:
        model: the dense model, never changed.
        tokenizer: of the model; None where the data holds token numbers.
        training: what candidates may be fitted to.
        choosing: the quality they are compared by.
        reporting: the quality that is told in the end.
        calibration: how samples are drawn and cut.
        timed: arguments of the call that is timed.
        timed_text: what that is, for people.
        tokens: activation rows of that call.
    """

    model: nn.Module
    tokenizer: Any
    training: Texts
    choosing: Quality
    reporting: Quality
    calibration: Calibration
    timed: dict[str, torch.Tensor]
    timed_text: str
    tokens: int

    def lost(self, dense: float, quality: float) -> float:
        """The quality given up, as a fraction: points / 100 of scores, growth of a perplexity."""
        if self.choosing.lower_is_better:
            return quality / dense - 1
        scale = 100 if "x 100" in self.choosing.name else 1
        return (dense - quality) / scale


def make_workload(
    model: nn.Module,
    tokenizer: Any,
    data: Texts,
    *,
    choose: Texts | None = None,
    report: Texts | None = None,
    batch: int = 1,
    tokens: int = 128,
) -> Workload:
    """Split the data where there are no files for the parts, and make an input to time."""
    training, choosing, reporting = _split(data, choose, report)
    calibration = Calibration(tokens=tokens)
    measures = [
        quality_of(model, part, tokenizer, calibration, held_out=False)
        for part in (choosing, reporting)
    ]
    if measures[0] is None or measures[1] is None:
        raise InputError(
            f"{data.path}: there is nothing to measure quality with. Give sentences, pairs with"
            " scores, or a text for a language model."
        )
    ids_BT = _typical_ids(model, batch, tokens)
    timed = {"input_ids": ids_BT}
    if not is_decoder(model):
        timed["attention_mask"] = torch.ones_like(ids_BT)
    return Workload(
        model, tokenizer, training, measures[0], measures[1], calibration, timed,
        f"{batch} x {tokens} tokens", batch * tokens,
    )  # fmt: skip


def _typical_ids(model: nn.Module, batch: int, tokens: int) -> torch.Tensor:
    config: Any = getattr(model, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is None:
        raise InputError(
            f"{type(model).__name__}: shrink needs a transformers model with a vocabulary."
        )
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(0, vocabulary, (batch, tokens), generator=generator)


def _split(data: Texts, choose: Texts | None, report: Texts | None) -> tuple[Texts, Texts, Texts]:
    shares = (0.0 if choose else _CHOOSE, 0.0 if report else _REPORT)
    if data.ids_NT is not None:
        raise InputError(f"{data.path}: shrink reads text, pairs or JSON lines, not token tensors.")
    count = len(data.pairs or data.texts)
    if count < _MIN_SAMPLES:
        raise InputError(
            f"{data.path}: {count} samples are too few to search with; at least {_MIN_SAMPLES} are"
            " needed, some to fit, some to choose by, some to report."
        )
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.randperm(count, generator=generator).tolist()
    held = [round(share * count) for share in shares]
    parts = (order[sum(held) :], order[: held[0]], order[held[0] : sum(held)])
    training, first, second = (_chosen(data, sorted(part)) for part in parts)
    return training, choose or first, report or second


def _chosen(data: Texts, numbers: Sequence[int]) -> Texts:
    if data.pairs:
        pairs = tuple(data.pairs[i] for i in numbers)
        texts = tuple(text for pair in pairs for text in (pair.first, pair.second))
        return replace(data, pairs=pairs, texts=texts, stream="\n".join(texts))
    texts = tuple(data.texts[i] for i in numbers)
    return replace(data, texts=texts, stream="\n".join(texts))

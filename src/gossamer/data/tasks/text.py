# SPDX-License-Identifier: Apache-2.0
"""The next token of a text. Legend: B batch, T tokens, V vocabulary."""

import math
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.batches import ShuffledBatches, generator_of
from gossamer.data.files import read_samples
from gossamer.data.tasks.task import Task, tensors_digest
from gossamer.data.token_ids import make_vocabulary
from gossamer.errors import InputError

GENERATED = "zoo:text"
_EVAL_WINDOWS = 64


def text_task(  # noqa: PLR0913  (one argument per setting of the data)
    data: str,
    batch: int,
    seed: int,
    *,
    context: int,
    tokens: Literal["bytes", "bpe"],
    vocabulary: int,
    holdout: float,
    evaluation: str | None,
    saved_tokenizer: bytes | None,
) -> Task:
    """A language model on a text file, or on generated text: `zoo:text`.

    Args:
        data: a .txt, .md or .jsonl file, or "zoo:text".
        batch: windows in a batch.
        seed: of the order of windows.
        context: tokens of a window.
        tokens: bytes, or byte pairs learned from the training text.
        vocabulary: entries of the byte pairs.
        holdout: fraction at the end of the text that is measured on and not trained on.
        evaluation: a file to measure on instead; `holdout` is then not used.
        saved_tokenizer: tokenizer.json of a run that is resumed.
    """
    text = _text(data)
    if evaluation is None:
        cut = round(len(text) * (1 - holdout))
        train_text, eval_text = text[:cut], text[cut:]
    else:
        train_text, eval_text = text, _text(evaluation)
    words = make_vocabulary(tokens, vocabulary, train_text.splitlines(), saved_tokenizer)
    train_ids, eval_ids = words.encode(train_text), words.encode(eval_text)
    bytes_per_token = len(eval_text.encode("utf-8")) / max(len(eval_ids), 1)
    # Windows at even distances, at most a fixed number of them.
    count = max((len(eval_ids) - 1) // context, 0)
    chosen = min(count, _EVAL_WINDOWS)
    starts = torch.arange(chosen) * count // max(chosen, 1) * context
    windows_NT = eval_ids[starts[:, None] + torch.arange(context + 1)]

    def evaluate(model: nn.Module) -> dict[str, float]:
        total = [float(_loss(model, part)) * len(part) for part in torch.split(windows_NT, batch)]
        mean = sum(total) / len(windows_NT)
        return {"bits_per_byte": mean / math.log(2) / bytes_per_token, "eval_loss": mean}

    return Task(
        name="text",
        batches=_Windows(train_ids, batch, context, seed, data),
        loss=_loss,
        evaluate=evaluate if len(windows_NT) else None,
        tokens=batch * context,
        sizes={"vocabulary": words.size},
        digest=tensors_digest(train_ids, eval_ids),
        beside=words.files,
        higher_is_better=False,
    )


class _Windows(ShuffledBatches):
    """Windows of context + 1 tokens; every epoch cuts the text at other places."""

    def __init__(self, ids: torch.Tensor, batch: int, context: int, seed: int, where: str) -> None:
        count = max((len(ids) - 1) // context - 1, 0)
        if count < batch:
            raise InputError(
                f"{where}: {len(ids)} tokens give {count} windows of {context}, fewer than one"
                f" batch of {batch}. Give more text, or a smaller context or batch."
            )
        self._context = context
        super().__init__(
            count, batch, seed, lambda starts: ids[starts[:, None] + torch.arange(context + 1)]
        )

    def _draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        shift = int(torch.randint(self._context, (), generator=generator))
        return shift + super()._draw(count, generator) * self._context


def _loss(model: nn.Module, ids_BT: torch.Tensor) -> torch.Tensor:
    output = model(ids_BT[:, :-1])
    logits_BTV = getattr(output, "logits", output)
    return cross_entropy(logits_BTV.float().flatten(0, 1), ids_BT[:, 1:].flatten())


def _text(data: str) -> str:
    if data == GENERATED:
        return _generated_text()
    samples = read_samples(Path(data))
    if samples.ids_NT is not None:
        raise InputError(f"{data}: holds token ids; give a text file.")
    return samples.stream


def _generated_text() -> str:
    """Words of a small language with a grammar: a noun, a verb that fits it, a place."""
    nouns = ["the cat", "the dog", "a bird", "one fish", "the old man", "a child"]
    verbs = ["sleeps", "runs", "sings", "swims", "waits", "plays"]
    places = ["at home", "in the sea", "by the road", "under a tree"]
    draws = torch.randint(24, (3000, 2), generator=generator_of(0, 12_000)).tolist()
    lines = []
    for first, second in draws:
        noun = first % 6
        verb = (noun + second // 8) % 6  # Each noun has three verbs only.
        lines.append(f"{nouns[noun]} {verbs[verb]} {places[second % 4]}.")
    return "\n".join(lines)

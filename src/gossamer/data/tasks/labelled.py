# SPDX-License-Identifier: Apache-2.0
"""Classification of texts with an encoder. Legend: B batch, T tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.batches import ShuffledBatches, generator_of
from gossamer.data.files import read_labelled
from gossamer.data.tasks.task import Task, classifier_quality, tensors_digest
from gossamer.data.token_ids import make_vocabulary, padded

GENERATED = "zoo:labelled"
_EVAL_BATCH = 64


def labelled_task(  # noqa: PLR0913  (one argument per setting of the data)
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
    """Texts with labels from a file, or generated ones: `zoo:labelled`.

    Args:
        data: a .jsonl, .csv or .tsv file with text and label, or "zoo:labelled".
        batch: texts in a batch.
        seed: of the order of texts, and of which are held out.
        context: longest text in tokens; longer ones are cut.
        tokens: bytes, or byte pairs learned from the training texts.
        vocabulary: entries of the byte pairs.
        holdout: fraction that is measured on and not trained on.
        evaluation: a file to measure on instead; `holdout` is then not used.
        saved_tokenizer: tokenizer.json of a run that is resumed.
    """
    samples = _read(data)
    if evaluation is None:
        order = torch.randperm(len(samples), generator=generator_of(seed, 1)).tolist()
        cut = len(samples) - round(len(samples) * holdout)
        train, held_out = [samples[i] for i in order[:cut]], [samples[i] for i in order[cut:]]
    else:
        train, held_out = samples, _read(evaluation)
    words = make_vocabulary(tokens, vocabulary, [text for text, _ in train], saved_tokenizer)
    # Id 0 pads, so that ids of the vocabulary move up by one.
    train_ids, eval_ids = (
        [words.encode(text)[:context] + 1 for text, _ in part] for part in (train, held_out)
    )
    train_labels, eval_labels = (
        torch.tensor([label for _, label in part], dtype=torch.int64) for part in (train, held_out)
    )
    classes = max(label for _, label in [*train, *held_out]) + 1

    def take(index: torch.Tensor) -> Any:
        return _padded([train_ids[i] for i in index.tolist()]), train_labels[index]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        (ids_BT, keep_BT), y_B = batch
        return cross_entropy(model(ids_BT, keep_BT).float(), y_B)

    def evaluate(model: nn.Module) -> dict[str, float]:
        starts = range(0, len(eval_ids), _EVAL_BATCH)
        parts = [slice(start, start + _EVAL_BATCH) for start in starts]
        return classifier_quality(
            model, ((_padded(eval_ids[part]), eval_labels[part]) for part in parts)
        )

    return Task(
        name="labelled",
        batches=ShuffledBatches(len(train), batch, seed, take),
        loss=loss,
        evaluate=evaluate if eval_ids else None,
        tokens=batch * context,
        sizes={"vocabulary": words.size + 1, "classes": classes},
        digest=tensors_digest(*train_ids, train_labels, *eval_ids, eval_labels),
        beside=words.files,
    )


def _padded(ids: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = padded(ids)
    return inputs["input_ids"], inputs["attention_mask"].bool()


def _read(data: str) -> list[tuple[str, int]]:
    if data != GENERATED:
        return read_labelled(Path(data))
    # Does the text hold more of the first or of the second four words?
    words = ["good", "fine", "warm", "bright", "bad", "dull", "cold", "grey"]
    draws = torch.randint(8, (800, 7), generator=generator_of(0, 800)).tolist()
    return [(" ".join(words[n] for n in row), int(sum(n > 3 for n in row) > 3)) for row in draws]

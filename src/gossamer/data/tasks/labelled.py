# SPDX-License-Identifier: Apache-2.0
"""Classification of texts with an encoder. Legend: B batch, T tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.batches import ShuffledBatches, generator_of
from gossamer.data.samples import read_text
from gossamer.data.tasks.digests import tensors_digest
from gossamer.data.tasks.task import Task
from gossamer.data.tasks.tokens import make_vocabulary
from gossamer.errors import InputError
from gossamer.io.safe_files.documents.strict_json import parse_json_line

GENERATED = "zoo:labelled"
MAX_CLASSES = 10_000
_EVAL_BATCH = 64
_EXPECTED = 'Each line is an object such as {"text": "good film", "label": 1}.'

Sample = tuple[str, int]


def labelled_task(  # noqa: PLR0913  (one argument per setting of the data)
    data: str,
    batch: int,
    seed: int,
    *,
    context: int,
    tokens: Literal["bytes", "bpe"] = "bytes",
    vocabulary: int = 4096,
    holdout: float = 0.1,
    evaluation: str | None = None,
    saved_tokenizer: bytes | None = None,
) -> Task:
    """Texts with labels from a .jsonl file, or generated ones: `zoo:labelled`.

    Args:
        data: lines of {"text": ..., "label": ...}, or "zoo:labelled".
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
        right, total = 0, 0.0
        for start in range(0, len(eval_ids), _EVAL_BATCH):
            ids_BT, keep_BT = _padded(eval_ids[start : start + _EVAL_BATCH])
            y_B = eval_labels[start : start + _EVAL_BATCH]
            logits = model(ids_BT, keep_BT).float()
            right += int((logits.argmax(-1) == y_B).sum())
            total += float(cross_entropy(logits, y_B, reduction="sum"))
        return {"accuracy": right / len(eval_ids), "eval_loss": total / len(eval_ids)}

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
    ids_BT = nn.utils.rnn.pad_sequence(list(ids), batch_first=True)
    if not ids_BT.shape[1]:
        ids_BT = ids_BT.new_zeros(len(ids), 1)
    return ids_BT, ids_BT != 0


def _read(data: str) -> list[Sample]:
    if data == GENERATED:
        return _generated()
    path = Path(data)
    if path.suffix != ".jsonl" or not path.is_file():
        raise InputError(f"{path}: expected a .jsonl file that is there. {_EXPECTED}")
    samples = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            samples.append(_sample(line, f"{path}:{number}"))
    if not samples:
        raise InputError(f"{path}: is empty. {_EXPECTED}")
    return samples


def _sample(line: str, where: str) -> Sample:
    item = parse_json_line(line, where)
    text = item.get("text") if isinstance(item, dict) else None
    label = item.get("label") if isinstance(item, dict) else None
    if not isinstance(text, str) or type(label) is not int or not 0 <= label < MAX_CLASSES:
        raise InputError(
            f"{where}: expected a text and a label in [0, {MAX_CLASSES}), got {line[:60]!r}."
            f" {_EXPECTED}"
        )
    return text, label


def _generated(count: int = 800) -> list[Sample]:
    """Does the text hold more of the first or of the second kind of word?"""
    generator = generator_of(0, count)
    kinds = (["good", "fine", "warm", "bright"], ["bad", "dull", "cold", "grey"])
    draws = torch.randint(8, (count, 7), generator=generator).tolist()
    samples = []
    for row in draws:
        votes = sum(1 if number < 4 else -1 for number in row)
        samples.append((" ".join(kinds[n // 4][n % 4] for n in row), int(votes < 0)))
    return samples

# SPDX-License-Identifier: Apache-2.0
"""Samples for recovery: a part is set aside, the rest comes in another order in every epoch.

Texts of like length come together, so that little is padding; which ones do changes too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from gossamer.data import generator_of
from gossamer.data.files import Pair, Texts
from gossamer.data.token_ids import padded, sentences, windows
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.families.text import is_decoder

__all__ = [
    "RecoverySamples",
    "SortedBatches",
    "batch_tokens",
    "samples_of_batches",
    "samples_of_file",
    "samples_of_pairs",
    "takes_names",
]

# Steps whose samples are sorted by length together.
_STEPS_SORTED = 20
_MAX_HELD_OUT = 512
_OTHER_THAN_CALIBRATION = 0x5DEECE66D
Item = TypeVar("Item")


def takes_names(model: nn.Module) -> bool:
    """Whether the model takes input_ids by name."""
    return hasattr(model, "config")


@dataclass(frozen=True)
class RecoverySamples:
    """What steps are made of.

    Attributes:
        make: the batch of these samples.
        lengths: of each sample, in tokens.
        numbers: the samples that are used.
    """

    make: Callable[[Sequence[int]], Batch]
    lengths: Sequence[int]
    numbers: Sequence[int]

    def split(self, held_out: float, seed: int) -> tuple["RecoverySamples", "RecoverySamples"]:
        """The part to train on, and at least one sample to choose by."""
        total = len(self.numbers)
        if total < 2:
            raise InputError(
                f"recover: needs at least 2 samples, one to choose the best state by; got {total}."
            )
        count = min(max(1, round(total * held_out)), _MAX_HELD_OUT, total - 1)
        # Calibration draws by the same seed; what it fitted the weights to could choose nothing.
        generator = torch.Generator().manual_seed(seed ^ _OTHER_THAN_CALIBRATION)
        order = _shuffled(range(total), generator)
        held, rest = (
            replace(self, numbers=[self.numbers[i] for i in sorted(part)])
            for part in (order[:count], order[count:])
        )
        return rest, held

    def in_order(self, size: int) -> Iterator[Batch]:
        """Every sample once, the same batches every time."""
        return map(self.make, _by_length(self.numbers, self.lengths, size))

    def mean_tokens(self, size: int) -> int:
        """Of a batch, padding left out."""
        used = [self.lengths[number] for number in self.numbers]
        return max(1, round(size * sum(used) / max(1, len(used))))


@dataclass
class SortedBatches:
    """Batches by number, of samples whose length is like; see `gossamer.data.batches`.

    Attributes:
        samples: all come once in an epoch.
        size: samples of a batch; the last ones of an epoch may be fewer.
        seed: decides all orders.
    """

    samples: RecoverySamples
    size: int
    seed: int
    _epoch: int = -1
    _groups: Sequence[list[int]] = ()

    def __len__(self) -> int:
        return -(-len(self.samples.numbers) // self.size)

    def __getitem__(self, number: int) -> Batch:
        epoch, place = divmod(number, len(self))
        if epoch != self._epoch:
            generator = generator_of(self.seed, epoch)
            numbers = _shuffled(self.samples.numbers, generator)
            groups: list[list[int]] = []
            for part in _cut(numbers, self.size * _STEPS_SORTED):
                groups += _by_length(part, self.samples.lengths, self.size)
            self._groups, self._epoch = _shuffled(groups, generator), epoch
        return self.samples.make(self._groups[place])


def samples_of_file(
    model: nn.Module, samples: Texts, tokenizer: Any, max_tokens: int
) -> RecoverySamples:
    """All of a file: pairs or texts for encoders, windows of the stream for decoders."""
    if is_decoder(model) or samples.ids_NT is not None:
        return samples_of_windows(windows(samples, tokenizer, max_tokens), named=takes_names(model))
    if samples.pairs:
        return samples_of_pairs(samples.pairs, tokenizer, max_tokens)
    return samples_of_texts(sentences(samples.texts, tokenizer, max_tokens))


def samples_of_pairs(pairs: Sequence[Pair], tokenizer: Any, max_tokens: int) -> RecoverySamples:
    """First texts of a batch, then second ones; labels are scores as parts of the highest."""
    sides = [
        sentences([getattr(pair, side) for pair in pairs], tokenizer, max_tokens)
        for side in ("first", "second")
    ]
    top = max((abs(pair.score) for pair in pairs), default=1.0) or 1.0

    def make(numbers: Sequence[int]) -> Batch:
        inputs = padded([side[i] for side in sides for i in numbers])
        labels = torch.tensor([pairs[i].score / top for i in numbers])
        rows = tuple(2 * i + side for side in (0, 1) for i in numbers)
        return Batch(inputs, inputs["attention_mask"].bool(), labels, rows)

    lengths = [2 * max(map(len, both)) for both in zip(*sides, strict=True)]
    return RecoverySamples(make, lengths, range(len(pairs)))


def samples_of_texts(ids: Sequence[torch.Tensor]) -> RecoverySamples:
    """Texts on their own."""

    def make(numbers: Sequence[int]) -> Batch:
        inputs = padded([ids[i] for i in numbers])
        return Batch(inputs, inputs["attention_mask"].bool(), None, tuple(numbers))

    return RecoverySamples(make, [len(row) for row in ids], range(len(ids)))


def samples_of_windows(ids_NT: torch.Tensor, *, named: bool) -> RecoverySamples:
    """Windows of equal length; `named`: the model takes input_ids by name."""

    def make(numbers: Sequence[int]) -> Batch:
        chosen = ids_NT[list(numbers)]
        return Batch({"input_ids": chosen} if named else chosen, samples=tuple(numbers))

    return RecoverySamples(make, [ids_NT.shape[1]] * len(ids_NT), range(len(ids_NT)))


def samples_of_batches(batches: Sequence[Batch]) -> RecoverySamples:
    """A user's batches as they are, one a step."""

    def make(numbers: Sequence[int]) -> Batch:
        (number,) = numbers
        return batches[number]

    return RecoverySamples(make, [batch_tokens(batch) for batch in batches], range(len(batches)))


def _shuffled(items: Sequence[Item], generator: torch.Generator) -> list[Item]:
    return [items[i] for i in torch.randperm(len(items), generator=generator).tolist()]


def _cut(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def _by_length(numbers: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    return _cut(sorted(numbers, key=lambda number: lengths[number]), size)


def batch_tokens(batch: Batch) -> int:
    """Activation rows that a batch makes."""
    first = batch.first_tensor()
    if first is None:
        return 1
    # Token numbers [B, T] have no width; everything else has it last.
    is_ids = not first.is_floating_point()
    return max(1, first.numel() if is_ids else first.shape[:-1].numel())

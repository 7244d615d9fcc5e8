# SPDX-License-Identifier: Apache-2.0
"""What `gossamer bench model` races: the user's encoder in torch, here, and in other engines."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.cli.models import load_source
from gossamer.errors import InputError
from gossamer.running.bench import EncoderTime, RaceEntry, dense_copy, model_run, race_encoders
from gossamer.running.encoder import read_layers
from gossamer.running.encoder.arrays import Arrays, encoder_arrays, find_base
from gossamer.running.layers import compile as compile_model
from gossamer.running.rivals import PRECISIONS, EncoderEngine, EngineFailed

_ROUNDS = 5


@dataclass(frozen=True)
class Subject:
    """An encoder in the forms that are raced.

    Attributes:
        base: takes ids and gives hidden states.
        dense: the same with stock layers.
        arrays: for other engines.
        sparsity: of the weights of its layers.
        sequence: tokens of a sequence.
    """

    name: str
    base: nn.Module
    dense: nn.Module
    arrays: Arrays
    sparsity: float
    sequence: int


def read_subject(text: str, sequence: int) -> Subject:
    """The encoder of the model that `text` names."""
    source = load_source(text)
    base, encoder = find_base(source.model)
    longest = getattr(getattr(base, "config", None), "max_position_embeddings", sequence)
    if sequence > longest:
        raise InputError(
            f"{source.name}: --sequence {sequence} is longer than its {longest} positions."
        )
    parts = [part.matrix for layer in read_layers(encoder) for part in layer.products]
    sparsity = 1 - sum(part.nnz for part in parts) / max(
        sum(part.positions.numel for part in parts), 1
    )
    return Subject(
        source.name,
        base,
        dense_copy(base),
        encoder_arrays(base, encoder, sequence),
        sparsity,
        sequence,
    )


def race_batch(
    subject: Subject,
    batch: int,
    precisions: Sequence[str],
    engines: Sequence[EncoderEngine],
    seconds: float,
) -> tuple[list[EncoderTime], list[str]]:
    """Times with torch fp32 first, and why an engine is not among them."""
    # From the whole vocabulary.
    words, generator = len(subject.arrays["word"]), torch.Generator().manual_seed(0)
    ids_BT = torch.randint(words, (batch, subject.sequence), generator=generator)
    expected = model_run(subject.dense, ids_BT)().numpy()
    entries = [RaceEntry.of_model((RaceEntry.STOCK, "fp32", 0.0), subject.dense, ids_BT, expected)]
    for precision in dict.fromkeys(precisions):
        fast = compile_model(subject.base, ids_BT.numel(), precision=precision)
        entries.append(
            RaceEntry.of_model((RaceEntry.OWN, precision, subject.sparsity), fast, ids_BT, expected)
        )
    refusals = []
    for engine in engines:
        for precision in [p for p in dict.fromkeys(precisions) if p in PRECISIONS[engine.name]]:
            found = (precision, subject.sparsity)
            try:
                entries.append(RaceEntry.of_engine(engine, found, subject.arrays, ids_BT, expected))
            except EngineFailed as failure:
                refusals.append(f"{failure} ({precision}, batch {batch})")
    return race_encoders(entries, seconds, _ROUNDS), refusals

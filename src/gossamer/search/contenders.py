# SPDX-License-Identifier: Apache-2.0
"""Dense models in other engines, on the same data and the same input as ours.

Each engine runs in its own process and environment (`run/encoder_engines.py`). Quality and time are
those of one compiled model: sequences of the timed length, shorter texts padded and masked.

Legend: N texts, T tokens, D features.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.io.samples import Texts, padded, sentences
from gossamer.nn.token_pruning import EncoderOutput
from gossamer.ops.timing import race, stopwatch
from gossamer.run.encoder_arrays import encoder_arrays, find_base
from gossamer.run.encoder_engines import (
    PRECISIONS,
    TITLES,
    EncoderEngine,
    EngineFailed,
    find_engine,
)
from gossamer.search.trial import Point, fair_clock
from gossamer.search.workload import Workload

_CALIBRATED = 300
_TURNS = 20
_TIMED_SECONDS = 1.0


class EngineModel(nn.Module):
    """An encoder that another process holds, called like a transformers model.

    Args:
        engine: that holds it.
        name: of the encoder in it.
        tokens: length of its sequences.
    """

    def __init__(self, engine: EncoderEngine, name: str, tokens: int) -> None:
        super().__init__()
        self._engine, self.name, self._tokens = engine, name, tokens

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> EncoderOutput:
        """The last hidden state [B, T, D]."""
        width = input_ids.shape[1]
        padding = (0, self._tokens - width)
        ids, mask = (nn.functional.pad(x, padding) for x in (input_ids, attention_mask))
        hidden = self._engine.encode(self.name, ids, mask)
        return EncoderOutput(torch.from_numpy(hidden)[:, :width])

    def seconds(self) -> float:
        """Of one call, in its turn."""
        return self._engine.turn(self.name)


class EngineContenders:
    """The engines that are installed; a context.

    Args:
        folder: environments by name; None = GOSSAMER_PEERS.
        threads: of every engine.
        say: gets a line when an engine refuses.
        names: of the engines that are asked, if they are there.
    """

    def __init__(
        self,
        folder: Path | None = None,
        threads: int | None = None,
        say: Callable[[str], None] = lambda text: None,
        names: Sequence[str] = tuple(PRECISIONS),
    ) -> None:
        self._say = say
        self._threads = threads or torch.get_num_threads()
        found = {name: find_engine(name, folder) for name in names}
        self._pythons = {name: python for name, python in found.items() if python is not None}
        self._open: list[EncoderEngine] = []

    def __enter__(self) -> "EngineContenders":
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._open:
            engine.close()
        self._open.clear()

    def models(
        self, work: Workload, precisions: Sequence[str] = ("fp32", "int8")
    ) -> Iterator[tuple[str, str, EngineModel]]:
        """(title, precision, model) of everything the engines can make of the dense encoder."""
        texts = work.texts.get("training")
        if work.kind != "encoder" or not isinstance(texts, Texts):
            return
        try:
            arrays = encoder_arrays(*find_base(work.model), work.tokens)
        except TargetError as error:
            self._say(f"other engines are not asked: {error}")
            return
        for name, python in self._pythons.items():
            engine = EncoderEngine(name, python, self._threads)
            self._open.append(engine)
            for precision in (p for p in PRECISIONS[name] if p in precisions):
                try:
                    engine.load(
                        precision, arrays, work.timed.arguments["input_ids"], precision,
                        calibration=calibration_inputs(texts, work),
                    )  # fmt: skip
                except EngineFailed as error:
                    self._say(str(error))
                    continue
                yield TITLES[name], precision, EngineModel(engine, precision, work.tokens)


def calibration_inputs(texts: Texts, work: Workload) -> dict[str, torch.Tensor]:
    """Ids and mask [N, T] of texts that were fitted to, padded to the timed length."""
    inputs = padded(sentences(texts.texts[:_CALIBRATED], work.tokenizer, work.tokens))
    padding = (0, work.tokens - inputs["input_ids"].shape[1])
    return {
        "ids": nn.functional.pad(inputs["input_ids"], padding),
        "mask": nn.functional.pad(inputs["attention_mask"], padding),
    }


def engine_points(work: Workload, dense: Point, engines: EngineContenders) -> list[Point]:
    """Every engine's int8 model as a point, for the front; bytes are those of its numbers."""
    points = []
    for title, precision, model in engines.models(work, ("int8",)):
        quality = work.choosing.measure(model)
        milliseconds = min(model.seconds() for _ in range(_TURNS)) * 1e3
        points.append(
            Point(
                title, precision, quality, work.lost(dense.quality, quality), milliseconds,
                dense.ms / milliseconds, counted_bytes(work.model, precision), is_ours=False,
            )
        )  # fmt: skip
    return points


def counted_bytes(model: nn.Module, precision: str) -> int:
    """What a dense file of that precision takes: one byte per weight of a product in int8."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    if precision == "int8":
        total -= 3 * sum(m.weight.numel() for m in model.modules() if type(m) is nn.Linear)
    return total


def dense_point(name: str, other: Workload, dense: Point) -> Point:
    """A smaller dense model of the user's; `other` is the same data for it and its tokenizer."""
    with torch.inference_mode():
        quality = other.choosing.measure(other.model)
        watch = stopwatch(other.timed.call(other.model), fair_clock())
        best = race([watch], budget_seconds=_TIMED_SECONDS)
    milliseconds = best[0] / 1e3
    return Point(
        name, "fp32", quality, other.lost(dense.quality, quality), milliseconds,
        dense.ms / milliseconds, counted_bytes(other.model, "fp32"), is_ours=False,
    )  # fmt: skip

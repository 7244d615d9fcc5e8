# SPDX-License-Identifier: Apache-2.0
"""Dense models in other engines, on the same data and the same input as ours.

Each engine runs in its own process and environment (`running/rivals/engines.py`). Quality and time
are those of one compiled model: sequences of the timed length, shorter texts padded and masked; one
image at a time.

Legend: N texts, T tokens, D features.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.data.files import Texts
from gossamer.data.token_ids import padded, sentences
from gossamer.errors import InputError, TargetError
from gossamer.nn.layer_kinds import kind_of
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.tokens import EncoderOutput
from gossamer.running.encoder.arrays import encoder_arrays, find_base
from gossamer.running.rivals import (
    NETWORK_PRECISIONS,
    PRECISIONS,
    EncoderEngine,
    EngineFailed,
    NetworkEngine,
    export_network,
    find_engine,
)
from gossamer.search.trial import Point
from gossamer.search.workloads import Workload

__all__ = [
    "EngineContenders",
    "dense_point",
    "engine_points",
]

_CALIBRATED = 300
_TURNS = 20
_TIMED_SECONDS = 1.0


class EngineModel(nn.Module):
    """A model that another process holds.

    Args:
        engine: that holds it.
        name: of the model in it.
    """

    def __init__(self, engine: Any, name: str) -> None:
        super().__init__()
        self._engine, self.name = engine, name

    def seconds(self) -> float:
        """Of one call, in its turn."""
        return float(self._engine.turn(self.name))


class EngineEncoder(EngineModel):
    """Called like a transformers model; sequences have at most `tokens` tokens."""

    def __init__(self, engine: EncoderEngine, name: str, tokens: int) -> None:
        super().__init__(engine, name)
        self._tokens = tokens

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> EncoderOutput:
        """The last hidden state [B, T, D]."""
        width = input_ids.shape[1]
        padding = (0, self._tokens - width)
        ids, mask = (nn.functional.pad(x, padding) for x in (input_ids, attention_mask))
        return EncoderOutput(torch.from_numpy(self._engine.encode(self.name, ids, mask))[:, :width])


class EngineNetwork(EngineModel):
    """Called with any number of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Their logits."""
        return torch.from_numpy(self._engine.logits(self.name, x))


class EngineContenders(ExitStack):
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
        super().__init__()
        self._say = say
        self._threads = threads or torch.get_num_threads()
        found = {name: find_engine(name, folder) for name in names}
        self._pythons = {name: python for name, python in found.items() if python is not None}

    def models(
        self, work: Workload, precisions: Sequence[str] = ("fp32", "int8")
    ) -> Iterator[tuple[str, str, EngineModel]]:
        """(title, precision, model) of everything the engines can make of the dense model."""
        if not self._pythons:
            return
        texts, images, x = work.texts.get("training"), work.images, work.timed.arguments
        try:
            if work.kind == "encoder" and isinstance(texts, Texts):
                arrays = encoder_arrays(*find_base(work.model), work.tokens)
                calibration = calibration_inputs(texts, work)

                def load_encoder(engine: EncoderEngine, precision: str) -> EngineModel:
                    engine.load(precision, arrays, x["input_ids"], precision, calibration)
                    return EngineEncoder(engine, precision, work.tokens)

                yield from self._loaded(EncoderEngine, load_encoder, precisions)
            elif images is not None:
                with tempfile.TemporaryDirectory() as place:
                    graph = Path(place) / "network.onnx"
                    export_network(work.model, x, graph)

                    def load_network(engine: NetworkEngine, precision: str) -> EngineModel:
                        engine.load(precision, graph, x, images, precision)
                        return EngineNetwork(engine, precision)

                    known = [p for p in precisions if p in NETWORK_PRECISIONS]
                    yield from self._loaded(NetworkEngine, load_network, known)
        except (TargetError, InputError) as error:
            self._say(f"other engines are not asked: {error}")

    def _loaded(
        self, kind: type[Any], load: Callable[[Any, str], EngineModel], precisions: Sequence[str]
    ) -> Iterator[tuple[str, str, EngineModel]]:
        for name, python in self._pythons.items():
            engine = self.enter_context(kind(name, python, self._threads))
            for precision in (p for p in PRECISIONS[name] if p in precisions):
                try:
                    yield engine.title, precision, load(engine, precision)
                except EngineFailed as error:
                    self._say(str(error))


def calibration_inputs(texts: Texts, work: Workload) -> dict[str, torch.Tensor]:
    """Ids and mask [N, T] of texts that were fitted to, padded to the timed length."""
    inputs = padded(sentences(texts.texts[:_CALIBRATED], work.tokenizer, work.tokens))
    padding = (0, work.tokens - inputs["input_ids"].shape[1])
    names = {"ids": "input_ids", "mask": "attention_mask"}
    return {name: nn.functional.pad(inputs[held], padding) for name, held in names.items()}


def engine_points(work: Workload, dense: Point, engines: EngineContenders) -> Iterator[Point]:
    """Every engine's int8 model as a point, for the front; bytes are those of its numbers."""
    for title, precision, model in engines.models(work, ("int8",)):
        quality = work.choosing.measure(model)
        milliseconds = min(model.seconds() for _ in range(_TURNS)) * 1e3
        yield _point(title, precision, work, dense, quality, milliseconds)


def counted_bytes(model: nn.Module, precision: str) -> int:
    """What a dense file of that precision takes: one byte per weight of a product in int8."""
    total = sum(parameter.nbytes for parameter in model.parameters())
    if precision == "int8":
        products = (layer for layer in model.modules() if kind_of(layer, has_masks=True))
        total -= 3 * sum(weight_of(layer).numel() for layer in products)
    return total


def dense_point(name: str, other: Workload, dense: Point) -> Point:
    """A smaller dense model of the user's; `other` is the same data for it and its tokenizer."""
    with torch.inference_mode():
        quality = other.choosing.measure(other.model)
    milliseconds = other.milliseconds(other.model, _TIMED_SECONDS)
    return _point(name, "fp32", other, dense, quality, milliseconds)


def _point(
    name: str, precision: str, work: Workload, dense: Point, quality: float, ms: float
) -> Point:
    lost, size = work.choosing.lost(dense.quality, quality), counted_bytes(work.model, precision)
    in_torch = dense.ms * dense.speedup
    return Point(name, precision, quality, lost, ms, in_torch / ms, size, is_ours=False)

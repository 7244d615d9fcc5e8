# SPDX-License-Identifier: Apache-2.0
"""A packed decoder on its way to a file and back, without torch.

`DecoderPlan` is plain data, arrays and packed weights; the last two become numbers of arrays.
Native code checks the arrays of every weight before kernels may follow its indices.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gossamer.errors import GossamerError
from gossamer.ops import _native
from gossamer.ops.engines.decoder_session import (
    DecoderPlan,
    DecoderRules,
    DecoderShape,
    NativeDecoder,
)
from gossamer.ops.kernels import active_kernels
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder.generation import NativeGenerator
from gossamer.running.decoder.session import DecoderSize, TextEngine
from gossamer.running.store import EngineStore, Fault, Identity, Parts

# What a file may hold that was damaged in a way that hashes do not find: made by another program.
_FAULTS = (Fault, GossamerError, ValueError, TypeError, KeyError, IndexError, AttributeError)


@dataclass(frozen=True)
class StoredDecoder:
    """What was kept.

    Attributes:
        engine: ready to run.
        told: what else was to be kept, plain data.
        files: bytes by name.
    """

    engine: NativeGenerator
    told: dict[str, Any]
    files: dict[str, bytes]

    @classmethod
    def find(
        cls, store: EngineStore, identity: Identity, keys: KeyRules | None
    ) -> "StoredDecoder | None":
        """The decoder that was kept for an identity; None if there is none that can be used."""
        parts = store.find(identity)
        if parts is None:
            return None
        try:
            return cls._of(parts, keys or KeyRules())
        except _FAULTS as reason:
            store.refuse(identity, str(reason))
            return None

    @classmethod
    def _of(cls, parts: Parts, keys: KeyRules) -> "StoredDecoder":
        read = _Reader(parts)
        told = parts.told["decoder"]
        plan = DecoderPlan(
            DecoderShape(**told["shape"]),
            DecoderRules(**told["rules"]),
            {name: read.value(found) for name, found in told["settings"].items()},
            tuple(read.value(layer) for layer in told["layers"]),
        )
        engine = TextEngine(
            NativeDecoder(plan), keys, DecoderSize(**told["size"]), list(told["kernels"])
        )
        files = {name: parts.arrays[at].tobytes() for name, at in told["files"].items()}
        return cls(NativeGenerator(engine), told["more"], files)


def store_decoder(
    store: EngineStore,
    identity: Identity,
    made: NativeGenerator,
    plan: DecoderPlan,
    more: dict[str, Any],
    files: Mapping[str, bytes],
) -> None:
    """Keep a decoder; one with a weight that has no form in files is left out.

    Args:
        store: where.
        identity: what it holds for.
        made: tells its size.
        plan: everything that was packed.
        more: plain data that belongs to it.
        files: the same, bytes by name.
    """
    write = _Writer()
    try:
        settings = {name: write.value(found) for name, found in plan.settings.items()}
        layers = [write.value(layer) for layer in plan.layers]
    except _NoForm:
        return
    told = {
        "shape": asdict(plan.shape),
        "rules": asdict(plan.rules),
        "settings": settings,
        "layers": layers,
        "weights": write.weights,
        "size": asdict(made.engine.size),
        "kernels": made.engine.kernels,
        "more": more,
        "files": {name: write.array(_bytes(content)) for name, content in files.items()},
    }
    store.keep(identity, Parts({"decoder": told}, write.arrays))


def _bytes(content: bytes) -> "np.typing.NDArray[np.uint8]":
    return np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)


class _NoForm(Exception):
    """A packed weight stays in its process."""


class _Writer:
    """Plain data with numbers in the place of weights and floats."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.weights: list[Any] = []
        self._known: dict[int, int] = {}

    def array(self, array: Any) -> int:
        self.arrays.append(array.view(np.uint8))
        return len(self.arrays) - 1

    def value(self, found: Any) -> Any:
        if isinstance(found, tuple | list):
            return [self.value(part) for part in found]
        if isinstance(found, np.ndarray):
            return {"floats": self.array(found)}
        if isinstance(found, _native.PackedWeight):
            return {"weight": self._weight(found)}
        if found is not None and not isinstance(found, int | float | str):
            raise _NoForm
        return found

    def _weight(self, weight: Any) -> int:
        if id(weight) not in self._known:
            stored = _native.stored_weight(weight)
            if stored is None:
                raise _NoForm
            family, numbers, arrays = stored
            self._known[id(weight)] = len(self.weights)
            self.weights.append([family, numbers, [self.array(array) for array in arrays]])
        return self._known[id(weight)]


class _Reader:
    """The way back."""

    def __init__(self, parts: Parts) -> None:
        self._arrays = parts.arrays
        self._kernels = active_kernels()
        self._weights = [self._weight(*told) for told in parts.told["decoder"]["weights"]]

    def value(self, found: Any) -> Any:
        if isinstance(found, list):
            return tuple(self.value(part) for part in found)
        if not isinstance(found, dict):
            return found
        if "weight" in found:
            return self._weights[found["weight"]]
        return self._arrays[found["floats"]].view(np.float32).copy()

    def _weight(self, family: str, numbers: list[int], arrays: list[int]) -> Any:
        return _native.restore_weight(
            family=family,
            numbers=numbers,
            arrays=[self._arrays[at] for at in arrays],
            kernels=self._kernels,
        )

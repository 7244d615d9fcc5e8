# SPDX-License-Identifier: Apache-2.0
"""How an optimizer keeps a moment of a Parameter: as numbers, or as 8-bit codes with exponents."""

from dataclasses import dataclass
from typing import Any

import torch

from gossamer.ops.training import NativeMoment
from gossamer.training.optim import codes

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]
_EXPONENTS = "_exponents"


@dataclass(frozen=True)
class StoredMoment:
    """One running average.

    Attributes:
        key: its name in the optimizer's state.
        signed: False if it is never negative.
    """

    key: str
    signed: bool

    @property
    def _code_dtype(self) -> torch.dtype:
        return torch.int8 if self.signed else torch.uint8

    def spec(self, param: torch.Tensor, eight_bit: bool) -> Spec:
        """Keys, shapes and dtypes in the state of a parameter."""
        shape = tuple(param.shape)
        if not eight_bit:
            wide = torch.float64 if param.dtype is torch.float64 else torch.float32
            return {self.key: (shape, wide)}
        blocks = (codes.num_blocks(param.numel()),)
        return {self.key: (shape, self._code_dtype), self.key + _EXPONENTS: (blocks, torch.int8)}

    def arrays(self, state: dict[str, Any]) -> NativeMoment:
        """The state as it is: numbers, or codes with exponents."""
        return NativeMoment(state[self.key], state.get(self.key + _EXPONENTS))

    def read(self, state: dict[str, Any], start: int, stop: int) -> torch.Tensor:
        """Entries start .. stop - 1 of the flat moment: a view of numbers, or decoded codes."""
        kept: torch.Tensor = state[self.key].view(-1)[start:stop]
        if self.key + _EXPONENTS not in state:
            return kept
        exponents = state[self.key + _EXPONENTS]
        return codes.decode(kept, exponents[start // codes.BLOCK : codes.num_blocks(stop)])

    def write(
        self,
        state: dict[str, Any],
        start: int,
        values: torch.Tensor,
        offsets: torch.Tensor | float = 0.5,
    ) -> None:
        """Put back what `read` gave and an optimizer changed; `start` is a multiple of 256."""
        if self.key + _EXPONENTS not in state:
            return
        stop = start + values.numel()
        coded, exponents = codes.encode(values, self._code_dtype, offsets)
        state[self.key].view(-1)[start:stop] = coded
        state[self.key + _EXPONENTS][start // codes.BLOCK : codes.num_blocks(stop)] = exponents

    def mapped(self, state: dict[str, Any], convert: Any) -> dict[str, torch.Tensor]:
        """The moment at other positions: `convert` takes and gives tensors of a weight's shape."""
        dense = state[self.key]
        if self.key + _EXPONENTS not in state:
            return {self.key: convert(dense)}
        values = self.read(state, 0, dense.numel()).view(dense.shape)
        moved = convert(values)
        coded, exponents = codes.encode(moved.reshape(-1), self._code_dtype)
        return {self.key: coded.view(moved.shape), self.key + _EXPONENTS: exponents}

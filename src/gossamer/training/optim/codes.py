# SPDX-License-Identifier: Apache-2.0
"""Moments in one byte: a logarithmic code with one exponent for every 256 elements.

A code says how many eighths of an octave an entry lies below the power of two above its block's
largest one. So each entry, large or small, is off by at most one step of 2^(1/8) (9 %), over 31
octaves for second moments and 15 for signed ones; smaller second moments are raised to the lowest
code, smaller signed ones become 0. Linear codes lose small second moments to 0, which divides by
it. Exponents are whole, so that a code moves to another block without a change of its number.

Rounding is down after adding an offset in [0, 1): 0.5 is to nearest, see `pieces.py`. A
`StoredMoment` is how an optimizer keeps a moment: as such codes with exponents, or as numbers.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from gossamer.ops.training.optimizer_passes import NativeMoment

Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]
# What an optimizer holds of one parameter.
State = dict[str, Any]

BLOCK = 256
_STEPS_PER_OCTAVE = 8
_TOP = {torch.uint8: 255, torch.int8: 127}
_LOWEST_EXPONENT = -126
# Decoding and encoding again must not fall below the same code by a rounding.
_GUARD = 1e-4


def num_blocks(numel: int) -> int:
    """Exponents of a tensor with that many elements."""
    return -(-numel // BLOCK)


def decode(codes: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """float32 [n] of codes (uint8: not negative, int8: signed) [n] and exponents [ceil(n/256)]."""
    table = _table(codes.dtype, codes.device)
    # A signed code is looked up in the table of bytes: -1 is 255.
    values = table.index_select(0, codes.view(torch.uint8).to(torch.int32))
    # Powers of two are made of their bits: they must be exact, and pow and exp2 need not be.
    scales = exponents.to(torch.int32).add_(127).bitwise_left_shift_(23).view(torch.float32)
    return values.mul_(_spread(scales, codes.numel()))


@functools.cache
def _table(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What each byte means below an exponent of 0."""
    top = _TOP[dtype]
    # Eight mantissas times powers of two: equal numbers have equal bits wherever their code is.
    levels = [
        2.0 ** ((top - level) % _STEPS_PER_OCTAVE / -_STEPS_PER_OCTAVE)
        * 2.0 ** -((top - level) // _STEPS_PER_OCTAVE)
        for level in range(1, top + 1)
    ]
    numbers = [0.0, *levels]
    if dtype is torch.int8:
        numbers += [-levels[-1], *(-level for level in reversed(levels))]
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def encode(
    values: torch.Tensor, dtype: torch.dtype, offsets: torch.Tensor | float = 0.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [n] of `dtype` (int8: signed, uint8: values are not negative) and exponents of blocks.

    There is no code for what is not finite: NaN becomes 0 and infinity the largest number. The
    weight that took such a step is not finite itself and shows it.
    """
    top, signed = _TOP[dtype], dtype is torch.int8
    sizes = torch.nan_to_num(values.abs() if signed else values, nan=0.0)
    # The exponent of the power of two above the largest entry of each block.
    largest = pad(sizes, (0, -sizes.numel() % BLOCK)).view(-1, BLOCK).amax(1)
    exponents = torch.frexp(largest.clamp_(max=2.0**126))[1]
    exponents = exponents.clamp_(_LOWEST_EXPONENT, 127).to(torch.int8)
    heights = _spread(exponents.to(torch.float32), values.numel())
    levels = sizes.log2().sub_(heights).mul_(_STEPS_PER_OCTAVE)
    guarded = torch.as_tensor(offsets, device=values.device).clamp(_GUARD, 1 - _GUARD)
    levels = levels.add_(top).add_(guarded).floor_()
    if signed:
        return levels.clamp_(0, top).mul_(values.sign().nan_to_num_(nan=0.0)).to(dtype), exponents
    return torch.where(sizes > 0, levels.clamp_(1, top), 0.0).to(dtype), exponents


def _spread(per_block: torch.Tensor, numel: int) -> torch.Tensor:
    # repeat_interleave does the same at several times the price.
    return per_block.unsqueeze(1).expand(-1, BLOCK).reshape(-1)[:numel]


@dataclass(frozen=True)
class StoredMoment:
    """One running average of a Parameter.

    Attributes:
        key: its name in the optimizer's state.
        signed: False if it is never negative.
    """

    key: str
    signed: bool

    @property
    def _code_dtype(self) -> torch.dtype:
        return torch.int8 if self.signed else torch.uint8

    @property
    def _exponents_key(self) -> str:
        return f"{self.key}_exponents"

    def spec(self, param: torch.Tensor, eight_bit: bool) -> Spec:
        """Keys, shapes and dtypes in the state of a parameter."""
        shape = tuple(param.shape)
        if not eight_bit:
            return {self.key: (shape, torch.promote_types(param.dtype, torch.float32))}
        blocks = (num_blocks(param.numel()),)
        return {self.key: (shape, self._code_dtype), self._exponents_key: (blocks, torch.int8)}

    def arrays(self, state: State) -> NativeMoment:
        """The state as it is: numbers, or codes with exponents."""
        return NativeMoment(state[self.key], state.get(self._exponents_key))

    def read(self, state: State, start: int, stop: int) -> torch.Tensor:
        """Entries start .. stop - 1 of the flat moment: a view of numbers, or decoded codes."""
        entries, exponents = self.arrays(state)
        kept = entries.view(-1)[start:stop]
        if exponents is None:
            return kept
        return decode(kept, exponents[start // BLOCK : num_blocks(stop)])

    def write(
        self,
        state: State,
        start: int,
        values: torch.Tensor,
        offsets: torch.Tensor | float,
    ) -> None:
        """Put back what `read` gave and an optimizer changed; `start` is a multiple of 256."""
        entries, exponents = self.arrays(state)
        if exponents is not None:
            stop = start + values.numel()
            coded = encode(values, self._code_dtype, offsets)
            entries.view(-1)[start:stop], exponents[start // BLOCK : num_blocks(stop)] = coded

    def mapped(
        self, state: State, convert: Callable[[torch.Tensor], torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The moment at other positions: `convert` takes and gives tensors of a weight's shape."""
        entries, exponents = self.arrays(state)
        if exponents is None:
            return {self.key: convert(entries)}
        moved = convert(self.read(state, 0, entries.numel()).view(entries.shape))
        coded, exponents = encode(moved.reshape(-1), self._code_dtype)
        return {self.key: coded.view(moved.shape), self._exponents_key: exponents}

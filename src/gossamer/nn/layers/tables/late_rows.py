# SPDX-License-Identifier: Apache-2.0
"""Initial rows of tables as a function of their number, made when it is known who holds them.

A table that several ranks share is never whole anywhere: inside of `late_rows()` tables are built
without numbers, and whoever cuts them asks for the rows of one rank. `fill_late` fills those that
nobody cut. Rows are the same in both cases, and however they are cut.
"""

import contextlib
import contextvars
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from gossamer.ops.addresses import is_watched

__all__ = [
    "LateRows",
    "fill_late",
    "forget_late",
    "give_rows",
    "is_late",
    "late_of",
    "late_rows",
    "untouched",
]

_BLOCK: Final = 1024  # rows of one generator
_SMALL: Final = 2**20
_NO_RESERVE: Final = 0x4000  # MAP_NORESERVE of Linux: room is taken page by page, when it is used
_MIX: Final = 0x9E3779B97F4A7C15
_is_late: contextvars.ContextVar[bool] = contextvars.ContextVar("late_rows", default=False)
_ATTRIBUTE: Final = "_late_rows"


@dataclass(frozen=True)
class LateRows:
    """Rows that are uniform in +-bound.

    Attributes:
        seed: of the table.
        bound: of the numbers.
        num_rows, width: of the table.
    """

    seed: int
    bound: float
    num_rows: int
    width: int

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Rows first to last - 1, float32."""
        made = torch.empty(max(last - first, 0), self.width)
        generator = torch.Generator()
        for block in range(first // _BLOCK, -(-last // _BLOCK) if last > first else 0):
            at = block * _BLOCK
            generator.manual_seed((self.seed + (block + 1) * _MIX) % 2**63)
            drawn = torch.empty(min(_BLOCK, self.num_rows - at), self.width)
            drawn.uniform_(-self.bound, self.bound, generator=generator)
            begin, end = max(first, at), min(last, at + len(drawn))
            made[begin - first : end - first] = drawn[begin - at : end - at]
        return made


@contextlib.contextmanager
def late_rows() -> Iterator[None]:
    """Tables that `give_rows` gets inside have no numbers until they are cut or filled."""
    token = _is_late.set(True)
    try:
        yield
    finally:
        _is_late.reset(token)


@torch.no_grad()
def give_rows(table: nn.EmbeddingBag | nn.Embedding, rows: LateRows) -> None:
    """Fill a table that was just built, now or late."""
    if table.weight.device.type != "cpu" or is_watched():
        return  # a skeleton: files give the numbers
    if _is_late.get():
        table.__dict__[_ATTRIBUTE] = (rows, table.weight._version)
        return
    for first in range(0, rows.num_rows, _BLOCK):
        last = min(first + _BLOCK, rows.num_rows)
        table.weight[first:last] = rows.rows(first, last)


def late_of(table: nn.Module) -> LateRows | None:
    """What fills a table that has no numbers yet; None if it has some, or was given others."""
    rows, version = table.__dict__.get(_ATTRIBUTE, (None, 0))
    weight: Any = table._parameters["weight"] if rows is not None else None
    return rows if weight is not None and weight._version == version else None


def is_late(table: nn.Module) -> bool:
    """Whether a table has no numbers yet."""
    return _ATTRIBUTE in table.__dict__ and late_of(table) is not None


def forget_late(model: nn.Module) -> None:
    """The tables of a model have been cut: what they hold from now on counts."""
    for module in model.modules():
        module.__dict__.pop(_ATTRIBUTE, None)


@torch.no_grad()
def fill_late(model: nn.Module) -> None:
    """Fill the tables that nobody cut."""
    for module in model.modules():
        rows: Any = late_of(module)
        module.__dict__.pop(_ATTRIBUTE, None)
        if rows is not None:
            give_rows(module, rows)  # type: ignore[arg-type]


def untouched(num_rows: int, width: int) -> torch.Tensor:
    """Zeros, float32; large ones take memory only where they are written, on Linux."""
    made = torch.empty(0)
    size = 4 * num_rows * width
    plain = made.device.type != "cpu" or made.dtype is not torch.float32 or is_watched()
    if plain or size < _SMALL or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(num_rows, width)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return torch.frombuffer(memory, dtype=torch.float32).view(num_rows, width)

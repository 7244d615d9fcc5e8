# SPDX-License-Identifier: Apache-2.0
"""Kept values that live in the dense weight only, and a mask that is a list of their places.

A resident layer needs its dense weight in every product, so the vector of values beside it says
everything twice. Without it a layer costs 2 bytes per kept weight less. The Parameter stays: it
receives gradients and is what optimizers hold. Its numbers are read from the dense weight and
written into it by optimizers that know about it (`gossamer.training.optim`); for others it is one
NaN seen many times, which torch refuses to write to.

Mode "samo" is SAMO as published (arXiv 2302.05045): the packed mask is given up, too, for one int32
index into the flat weight, which values, gradients, masters and moments share. Entries that are not
in it are never written.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.formats.bits import pack_bits, unpack_bits
from gossamer.ops.training.expansion import fill, gather_kept

if TYPE_CHECKING:
    from typing_extensions import Self

_ATTRIBUTE = "_gossamer_dense_home"
_MASK = "mask_bits"
_INT32_ENTRIES = 2**31


@dataclass(eq=False)
class DenseHome:
    """The dense weight [R, K] in which kept values live, and where they are in it.

    Attributes:
        dense: the weight.
        positions: the packed mask, or int32 places in the flat weight [n], in order.
        num_values: n.
    """

    dense: torch.Tensor
    positions: torch.Tensor
    num_values: int

    @property
    def has_index(self) -> bool:
        """Whether positions are an index: mode "samo"."""
        return self.positions.dtype is torch.int32

    def read(self) -> torch.Tensor:
        """A copy of the values."""
        if self.has_index:
            return self.dense.view(-1).index_select(0, self.positions)
        return gather_kept(self.dense, self.positions, self.num_values)

    def write(self, values: torch.Tensor) -> None:
        """Put new values in their places."""
        if self.has_index:
            self.dense.view(-1).scatter_(0, self.positions, values)
        else:
            fill(self.dense, values, self.positions)

    def mask_bits(self) -> torch.Tensor:
        """The packed mask."""
        if not self.has_index:
            return self.positions
        mask = torch.zeros_like(self.dense, dtype=torch.bool)
        mask.view(-1)[self.positions] = True
        return pack_bits(mask)

    def empty(self, values: nn.Parameter) -> None:
        """Take the numbers out of the Parameter: one NaN is left, seen `num_values` times."""
        values.data = self.dense.new_full((1,), torch.nan).expand(self.num_values)
        setattr(values, _ATTRIBUTE, self)

    @staticmethod
    def of(param: torch.Tensor) -> "DenseHome | None":
        """Where the numbers of a Parameter are, if not in itself."""
        home = getattr(param, _ATTRIBUTE, None)
        return home if isinstance(home, DenseHome) else None

    @staticmethod
    def leave(values: nn.Parameter) -> None:
        """Forget that the numbers were elsewhere."""
        if hasattr(values, _ATTRIBUTE):
            delattr(values, _ATTRIBUTE)


class MayGiveUpValues(nn.Module, ABC):
    """The part of a compact layer that lets its values live in the dense weight."""

    # The modes in which training multiplies by the dense copy.
    TRAINS_ON_DENSE: ClassVar[tuple[str, ...]] = ()

    values: nn.Parameter
    mask_bits: torch.Tensor
    mode: str

    def __init__(self) -> None:
        super().__init__()
        self._home: DenseHome | None = None

    @abstractmethod
    def _fresh_dense(self) -> torch.Tensor:
        """The dense weight that products use, made anew if values changed."""

    @abstractmethod
    def refresh(self) -> None:
        """Forget the dense copy."""

    def kept_values(self) -> torch.Tensor:
        """The kept values, wherever they live; a copy if that is the dense weight."""
        return self.values.detach() if self._home is None else self._home.read()

    def give_up_values(self) -> None:
        """Let the values live in the dense weight of mode "resident" or "samo" only.

        `values` stays the Parameter for gradients and optimizers of `gossamer.training.optim`;
        reading it gives NaN, and other optimizers fail on it. `kept_values`, `dense_weight`,
        state_dict and files have the numbers. Not for layers that share their values.
        """
        if self.mode not in self.TRAINS_ON_DENSE:
            raise InputError(
                f"{type(self).__name__}.give_up_values: only a Linear of mode 'resident' and layers"
                f" of mode 'samo' have a dense weight to keep them in; this is"
                f" {type(self).__name__}, mode {self.mode!r}."
            )
        if self._home is not None:
            return
        if DenseHome.of(self.values) is not None:
            raise InputError(
                f"{type(self).__name__}.give_up_values: another layer shares the values and has"
                " given them up. Use mode 'resident' or 'jit' for layers with one weight."
            )
        # One value has no smaller form.
        if self.values.numel() > 1:
            dense = self._fresh_dense()
            positions = self._index(dense) if self.mode == "samo" else self.mask_bits
            self._home = DenseHome(dense, positions, self.values.numel())
            self._home.empty(self.values)
            if self._home.has_index:
                del self._buffers[_MASK]

    def _index(self, dense: torch.Tensor) -> torch.Tensor:
        """The places of kept values in the flat weight."""
        if dense.numel() >= _INT32_ENTRIES:
            raise InputError(
                f"{type(self).__name__}, mode 'samo': a weight of {list(dense.shape)} has more"
                " entries than an int32 index can name. Use mode 'resident' or 'jit' for it."
            )
        mask = unpack_bits(self.mask_bits, dense.shape[1])
        return mask.view(-1).nonzero().squeeze(1).to(torch.int32)

    def take_back_values(self) -> bool:
        """Undo `give_up_values`; whether it had been done."""
        home = self._home
        if home is None:
            return False
        self._home = None
        DenseHome.leave(self.values)
        self.values.data = home.read()
        if home.has_index:
            self.register_buffer(_MASK, home.mask_bits())
        self.refresh()
        return True

    @contextmanager
    def _with_values(self) -> Iterator[None]:
        """Values that were given up are in the Parameter until the block ends well."""
        given_up = self.take_back_values()
        yield
        if given_up:
            self.give_up_values()

    def _apply(self, fn: Any, recurse: bool = True) -> "Self":
        with self._with_values():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            self.refresh()
        return self

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._home is not None:  # a copy of the layer: its Parameter is new
            self._home.empty(self.values)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._home is not None:
            destination[prefix + "values"] = self._home.read()
            if self._home.has_index:
                destination[prefix + _MASK] = self._home.mask_bits()

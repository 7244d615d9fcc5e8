# SPDX-License-Identifier: Apache-2.0
"""Kept values that live in the dense weight only.

A resident layer needs its dense weight in every product, so the vector of values beside it says
everything twice. Without it a layer costs 2 bytes per kept weight less. The Parameter stays: it
receives gradients and is what optimizers hold. Its numbers are read from the dense weight and
written into it by optimizers that know about it (`gossamer.training.optim`); for others it is one
NaN seen many times, which torch refuses to write to.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.ops.training.expansion import fill, gather_kept

if TYPE_CHECKING:
    from typing_extensions import Self

_ATTRIBUTE = "_gossamer_dense_home"


@dataclass(eq=False)
class DenseHome:
    """The dense weight [R, K] in which kept values live, and where they are in it."""

    dense: torch.Tensor
    mask_bits: torch.Tensor
    num_values: int

    def read(self) -> torch.Tensor:
        """A copy of the values."""
        return gather_kept(self.dense, self.mask_bits, self.num_values)

    def write(self, values: torch.Tensor) -> None:
        """Put new values in their places."""
        fill(self.dense, values, self.mask_bits)

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

    # Whether mode "resident" multiplies by the dense copy in training, too.
    TRAINS_ON_DENSE: ClassVar[bool] = False

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
        """Let the values live in the dense weight of mode "resident" only.

        `values` stays the Parameter for gradients and optimizers of `gossamer.training.optim`;
        reading it gives NaN, and other optimizers fail on it. `kept_values`, `dense_weight`,
        state_dict and files have the numbers. Not for layers that share their values.
        """
        if self.mode != "resident" or not self.TRAINS_ON_DENSE:
            raise InputError(
                f"{type(self).__name__}.give_up_values: only a Linear of mode 'resident' has a"
                f" dense weight to keep them in; this is {type(self).__name__}, mode {self.mode!r}."
            )
        # One value has no smaller form.
        if self._home is None and self.values.numel() > 1:
            self._home = DenseHome(self._fresh_dense(), self.mask_bits, self.values.numel())
            self._home.empty(self.values)

    def take_back_values(self) -> bool:
        """Undo `give_up_values`; whether it had been done."""
        home = self._home
        if home is None:
            return False
        self._home = None
        DenseHome.leave(self.values)
        self.values.data = home.read()
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
